"""Time limits in seconds for all waits that the user cannot set.

The user sets start_timeout, timeout and end_timeout.
"""

# Rendezvous. How long a cluster's name service may lag behind its pods, and how long
# torch's client may need to connect if no name server answers.
NAME_IS_KNOWN, TORCH_CONNECTS = 30.0, 60.0
# How long a store may take to answer a greeting, which it does at once unless its
# process is stopped, and how long to answer anything else, on a machine that swaps.
GREETING, ANY_ANSWER = 6.0, 20.0
# How long a new store's host may take to write which job it belongs to.
OWNER_IS_KNOWN = 30.0
# How often a waiting rank checks whether the other ranks are still alive.
LOOK_AFTER_OTHERS = 1.0

# Roll call. After start_timeout one rank writes the verdict: how long the others wait
# for it, and how long that rank may look up each rank's key, one by one.
VERDICT_IS_WRITTEN, ASK_EACH_RANK = 10.0, 2.0
# How long a rank that cannot start tries to reach the others to tell them, and how long
# the store's host waits for them to read the error.
TELL_THE_OTHERS, HOST_STAYS_AT_START = 15.0, 30.0
# How long the store's host waits, before its script starts, for the others to leave:
# longer than each of them waits for it.
LEAVE_FOR_SCRIPTS = 2 * VERDICT_IS_WRITTEN

# Shutdown. How long ranks have to report what they are doing, and how long they wait
# for the outcome that one rank draws from the reports.
DOING, OUTCOME = 3.0, 6.0
# How long the other ranks may take to close their groups once all have finished.
CLOSE_GROUPS = 10.0
# How long the store's host waits after an error for the others to read it: in the
# block, and when its process exits; how often it checks whether they have.
HOST_STAYS, HOST_STAYS_AT_EXIT, HOST_LOOKS = 1.0, 10.0, 0.2
# How long a process that has closed its connections may take to end.
PROCESS_GOES = 0.5
# How often a rank checks its own collectives once another has finished or failed; how
# long its listener thread may take to stop.
LOOK_AT_COLLECTIVES, LISTENER_STOPS = 0.5, 1.0
# How often a rank checks whether a collective has exceeded the user's timeout, on a
# backend whose watchdog would end the process for it; and how much more time torch is
# given, so that the ranks can say first who is late.
LOOK_FOR_LATE, TORCH_LATER = 5.0, 30.0
# How long the main thread may stay in init_process_group after another rank has failed,
# and how often that is checked.
INIT_RETURNS, LOOK_AT_INIT = 10.0, 0.1
# After how long init_process_group is past its own first steps.
INIT_IS_UNDER_WAY = 0.1
# How long NCCL may take to abort, after a failure, and to destroy its communicators,
# after success: both wait for the peers to do the same.
ABORT_RETURNS, DESTROY_RETURNS = 3.0, 10.0
# How long gloo may stay in a collective after its connections are shut down.
GLOO_FAILS = 5.0
# How long C code may block the main thread, on which Python's signal handlers run.
LIBRARY_HOLDS_SIGTERM = 5.0

# spawn. How long the other ranks may take to fail by themselves, then to exit after
# SIGTERM, and to exit after SIGTERM when their parent has died.
FAIL_BY_THEMSELVES, LEAVE_WHEN_TOLD, LEAVE_AS_ORPHAN = 3.0, 5.0, 5.0
# After how long a rank prints what it is still waiting for.
SAY_WHAT_IS_AWAITED = 5.0
