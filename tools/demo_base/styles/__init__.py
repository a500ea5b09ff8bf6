"""Pictures as people upload them, drawn by code in seven styles: inputs for tests whose origin is not the training data."""
