"""What we measured of ourselves: one file per study, each with its committed result."""
