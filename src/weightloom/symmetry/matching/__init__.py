"""The group element that maps one network to another: exact (`search`) or near (`assignment`)."""
