"""Labels that people gave to outputs: read from files, checked, and found again among the outputs of a run."""
