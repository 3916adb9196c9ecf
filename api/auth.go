package api

import (
	"github.com/gofiber/fiber/v2"

	"github.com/attestd/attestd/appliance"
)

// admit checks whether a request may use a route, and charges it to a rate limit. A request with an API key that is
// valid for the route is charged to the key, any other to the client address. So a client that floods the server or
// guesses keys cannot block a caller with a key behind the same address. An open route serves both.
func (s *Server) admit(c *fiber.Ctx, x *exchange, r Route) error {
	if r.Probe {
		return nil
	}
	if r.ReadsLog {
		x.charge = charge{s.logAccounts.of(network(x.ip)), scaled(s.opts.LogRate, s.pressure.factor(s.now()))}
		return s.charge(x)
	}
	refusal := s.identify(c, x, r.Scope)
	status := statuses[appliance.CodeOf(refusal)]
	switch {
	case refusal == nil:
		x.charge = charge{s.keyAccounts.of(x.key.ID), s.keyRate(x.key, r)}
	case status == fiber.StatusUnauthorized || status == fiber.StatusForbidden:
		x.charge = charge{s.addressAccounts.of(network(x.ip)), s.anonymousRate(r)}
	default:
		return refusal
	}
	if err := s.charge(x); err != nil {
		return err
	}
	if r.Scope == "" && !r.AnyScope || r.Open {
		return nil
	}
	return refusal
}

// charge charges a request to its client. A client that made many errors has a tightened rate.
func (s *Server) charge(x *exchange) error {
	now, client, usual := s.now(), x.charge.account, x.charge.rate
	tightened := client.tightened(now, s.opts.ErrorRate)
	if tightened > 0 {
		x.charge.rate = scaled(usual, tightening)
	}
	wait := client.withdraw(now, x.charge.rate)
	if wait == 0 {
		return nil
	}
	s.metrics.limit(x)
	if tightened > 0 { // the rate may be loosened before the bucket refills
		wait = min(wait, max(tightened, client.wait(now, usual)))
	}
	e := appliance.Errorf(appliance.CodeRateLimited, "more than %s requests", x.charge.rate)
	e.RetryAfter, x.wait = wait, wait
	return e
}

// answered charges a 4xx answer, except 429, to the client's error rate.
func (s *Server) answered(x *exchange, status int) {
	s.sampler.wake()
	if status < 400 || status > 499 || status == fiber.StatusTooManyRequests {
		return
	}
	client, by := x.charge.account, byKey
	if x.key.ID == "" {
		by = byAddress
	}
	if client == nil {
		client = s.addressAccounts.of(network(x.ip))
	}
	if client.fault(s.now(), s.opts.ErrorRate) {
		s.metrics.tighten(by)
	}
}

// keyRate returns the rate of an API key on a route. A key without a rate of its own gets at least the route's
// anonymous rate.
func (s *Server) keyRate(key appliance.APIKey, r Route) appliance.Rate {
	if key.Rate != (appliance.Rate{}) {
		return key.Rate
	}
	return scaled(appliance.Rate{PerSecond: max(s.rates.Load().key.PerSecond, r.Rate.PerSecond)},
		s.pressure.factor(s.now()))
}

// anonymousRate returns the rate of one client address on a route without an API key.
func (s *Server) anonymousRate(r Route) appliance.Rate {
	rate := r.Rate
	if rate == (appliance.Rate{}) {
		rate = s.rates.Load().anonymous
	}
	return scaled(rate, s.pressure.factor(s.now()))
}

func scaled(r appliance.Rate, factor float64) appliance.Rate {
	return appliance.Rate{PerSecond: r.PerSecond * factor}
}

// identify sets x.key to the request's API key if the key allows the scope. An empty scope allows any valid key. The
// error explains the refusal.
func (s *Server) identify(c *fiber.Ctx, x *exchange, scope appliance.Scope) error {
	key, err := s.authenticate(c)
	if err != nil {
		return err
	}
	x.keyID = key.ID
	if err := key.Authorize(scope, x.ip, s.now()); err != nil {
		return err
	}
	x.key = key
	return nil
}

func (s *Server) authenticate(c *fiber.Ctx) (appliance.APIKey, error) {
	tokens := c.Context().Request.Header.PeekAll("X-Api-Key")
	if len(tokens) > 1 {
		return appliance.APIKey{},
			appliance.Errorf(appliance.CodeInvalidAPIKey, "exactly one x-api-key header is allowed")
	}
	token := ""
	if len(tokens) == 1 {
		token = string(tokens[0])
	}
	if token == "" && len(c.Context().Request.Header.Peek("Authorization")) > 0 {
		return appliance.APIKey{}, appliance.Errorf(appliance.CodeMissingAPIKey,
			"an API key is required in the x-api-key header: send it there instead of in Authorization")
	}
	ctx := s.deadlines.context()
	return appliance.Authenticate(ctx, s.attestor.Keys, token)
}

// Key returns the API key of a request, for the handlers of Options.Routes. Its ID is empty if the request had no key
// that is valid for the route.
func Key(c *fiber.Ctx) appliance.APIKey { return exchangeOf(c.Context()).key }
