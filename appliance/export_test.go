package appliance

import "context"

// Sign is the part of Attest that waits for the signer.
func (a *Attestor) Sign(ctx context.Context, keyID string) error {
	_, err := a.sign(ctx, a.now().standard, keyID, Digest{})
	return err
}
