"""How tests are started, counted and reported: what tests/run.py and hack/mutants.py both stand on."""
