"""One rank's session, from set_device to destroy_process_group.

Start with session.py: local_setup.py, startup.py and shutdown.py are its three parts.
May import rendezvous, detect and mapping.
"""
