"""Reports: from measurements to reports, from the reports of all workers to a split, and the records of both."""
