"""Does ``uneven why`` name the slow worker and the cause, does it stay silent otherwise, and what does it cost?"""
