"""Other implementations of attention, each behind an adapter that says whether it can express a spec."""
