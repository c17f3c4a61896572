"""Training of the network that is shared by all tables: the prior of the local part of new features."""
