"""One thread a test process: two runners on two cores would else wait for each other's threads."""

import torch

torch.set_num_threads(1)
