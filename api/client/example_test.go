package client_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"time"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance"
)

func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	attestation, err := attest(ctx, os.Args[1], os.Args[2], os.Args[3])
	if err != nil {
		log.Fatal(err)
	}
	transfer, err := newestTransfer(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for _, result := range []any{attestation, transfer} {
		if err := json.NewEncoder(os.Stdout).Encode(result); err != nil {
			log.Fatal(err)
		}
	}
}

// attest requests an attestation, and retries while the appliance is unreachable or busy, until ctx ends.
func attest(ctx context.Context, unspendable, beneficiary, orderID string) (a appliance.Attestation, err error) {
	var request appliance.Request
	if request.UnspendableAddress, err = appliance.ParseAddress(unspendable); err != nil {
		return a, err
	}
	if request.Beneficiary, err = appliance.ParseAddress(beneficiary); err != nil {
		return a, err
	}
	attestor, err := appliance.ParseAddress(os.Getenv("ATTESTOR_ADDRESS"))
	if err != nil {
		return a, err
	}
	scheme, err := appliance.NewScheme(appliance.SchemeKeccak256BN254, nil)
	if err != nil {
		return a, err
	}
	c, err := client.New(os.Getenv("ATTESTD_URL"), os.Getenv("ATTESTD_API_KEY"), client.Options{})
	if err != nil {
		return a, err
	}
	if a, err = c.Attest(ctx, request, client.AttestOptions{IdempotencyKey: orderID}); err != nil {
		return a, err
	}
	if err := a.Verify(); err != nil {
		return a, err
	}
	if a.SignerAddress != attestor || a.Hash != scheme.Digest(request) {
		return a, fmt.Errorf("attestation %s is not the attestor's, or not of these addresses: do not use it", a.ID)
	}
	return a, nil
}

// newestTransfer reads with GraphQL, which works with any HTTP client.
func newestTransfer(ctx context.Context) (json.RawMessage, error) {
	body := []byte(`{"query": "query @cached(ttl: 1) { v2_transfers(args: { p_limit: 1 }) { sender_canonical base_amount status sort_order } }"}`)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, os.Getenv("ATTESTD_URL")+"/v1/graphql", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("X-Api-Key", os.Getenv("ATTESTD_API_KEY"))
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	var answer struct {
		Data struct {
			Transfers json.RawMessage `json:"v2_transfers"`
		}
	}
	if err := json.Unmarshal(text, &answer); err != nil || answer.Data.Transfers == nil {
		return nil, fmt.Errorf("/v1/graphql: %s %s", response.Status, text)
	}
	return answer.Data.Transfers, nil
}
