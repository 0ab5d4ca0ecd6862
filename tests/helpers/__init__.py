"""What tests share: ranks to start, machines to pretend, launchers to run under."""
