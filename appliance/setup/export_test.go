package setup

import "io"

// SealQuickly is Seal with a low work factor, for tests that open many bundles.
func (b Bundle) SealQuickly(w io.Writer, passphrase []byte) error { return b.seal(w, passphrase, 10) }
