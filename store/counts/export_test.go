package counts

// Wait waits until the counts are stored.
func (c *Counts) Wait() { c.storing.Wait() }
