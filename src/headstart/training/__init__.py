"""Training: pretraining of backbones, meta-training, choice and calibration of adapters."""
