"""The ground floor: contracts, errors, memory, machine, statistics."""
