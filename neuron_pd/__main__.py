"""`python -m neuron_pd` is `neuron-pd`."""

from neuron_pd.cli import main

if __name__ == "__main__":
    main()
