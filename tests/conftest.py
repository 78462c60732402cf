import signal

# A shell starts background jobs with SIGINT ignored, and what the tests start would inherit that and never see Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
