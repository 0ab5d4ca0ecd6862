"""How long anything waits, in seconds, where the user does not say it.

What the user says is start_timeout, timeout and end_timeout.
"""

# Meeting on the store. How long a cluster's name service may lag behind its pods, and
# what torch needs to connect where no name server answers.
NAME_IS_KNOWN, TORCH_CONNECTS = 30.0, 60.0
# A store answers a greeting at once, if its process is not stopped; and anything else
# within this, on a machine that swaps.
GREETING, ANY_ANSWER = 6.0, 20.0
# How long a store that has just been opened may take to say whose it is.
OWNER_IS_KNOWN = 30.0
# How often a rank that waits looks after the others meanwhile.
LOOK_AFTER_OTHERS = 1.0

# The roll call. How long the verdict may take once the time is up and one rank is
# writing it; how long that one may ask after the others, one by one.
VERDICT_IS_WRITTEN, ASK_EACH_RANK = 10.0, 2.0
# How long a rank that cannot start looks for the others, to tell them; and how long the
# store's host stays, so that they hear of it.
TELL_THE_OTHERS, HOST_STAYS_AT_START = 15.0, 30.0

# The end. How long ranks have to answer what they are doing, and how long they wait for
# what is made of it.
DOING, OUTCOME = 3.0, 6.0
# How long the others may take to close their groups, once all have come to the end.
CLOSE_GROUPS = 10.0
# How long the store's host stays after an error, so that the others hear of it: in the
# block, and at the end of its process; how often it looks whether they have.
HOST_STAYS, HOST_STAYS_AT_EXIT, HOST_LOOKS = 1.0, 10.0, 0.2
# How long a process that has closed its connections may take to be gone.
PROCESS_GOES = 0.5
# How often a rank looks at its own collectives, once another has come to its end; how
# long its listener may take to stop.
LOOK_AT_COLLECTIVES, LISTENER_STOPS = 0.5, 1.0
# How long the main thread may stay in torch's init after another rank has failed, and
# how often that is looked at.
INIT_RETURNS, LOOK_AT_INIT = 10.0, 0.1
# How long a library may hold the main thread, on which Python's signal handlers run.
LIBRARY_HOLDS_SIGTERM = 5.0

# spawn. How long the other ranks may take to fail by themselves, then to leave when
# told to, and to leave when their parent has died.
FAIL_BY_THEMSELVES, LEAVE_WHEN_TOLD, LEAVE_AS_ORPHAN = 3.0, 5.0, 5.0
# After how long a rank says what it still waits for.
SAY_WHAT_IS_AWAITED = 5.0
