import signal

import hypothesis

# A shell starts background jobs with SIGINT ignored, and what the tests start would inherit that and never see Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says more about the machine than about the code.
hypothesis.settings.register_profile("neuron-pd", deadline=None)
hypothesis.settings.load_profile("neuron-pd")
