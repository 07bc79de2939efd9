"""Training an MTP head for a trunk that has none, against the trunk itself (`mtplx train-head`)."""
