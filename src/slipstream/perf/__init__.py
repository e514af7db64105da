"""Performance tools: diagnose measures and advises, tune searches a faster plan, bench compares variants."""
