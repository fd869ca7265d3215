"""Queue policies: who is admitted next. One file each; `scheduling_policy` names them."""
