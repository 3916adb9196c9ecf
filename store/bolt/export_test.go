package bolt

// BreakFile makes every later write fail, other than for want of space.
func (s *Store) BreakFile() { s.file.Close() }

// DiskFull is diskFull.
var DiskFull = diskFull
