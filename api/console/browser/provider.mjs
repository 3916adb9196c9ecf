// A real OpenID Connect provider, for tests: oidc-provider, at the socket that is file descriptor 3. ISSUER is its address. Anybody is who they
// say they are; `late` signed in ten minutes ago. Groups are told by the UserInfo endpoint alone, but those of `olga` in the ID token, too.
import Provider, { interactionPolicy } from "oidc-provider"

const groups = { olga: ["ops", "everybody"], ada: ["audit"], vera: ["staff"], late: ["ops"], mallory: ["everybody"] }

// A native client may come back to any port of this machine, and would be asked for consent each time.
const policy = interactionPolicy.base()
policy.get("consent").checks.remove("native_client_prompt")

const provider = new Provider(process.env.ISSUER, {
  clients: [{
    client_id: "attestd", client_secret: "the console's secret", application_type: "native", redirect_uris: ["http://127.0.0.1/oidc/callback"],
  }],
  pkce: { required: () => true },
  claims: { openid: ["sub", "groups"], email: ["email"] },
  scopes: ["openid", "profile", "email"],
  findAccount: (_, id) => ({
    accountId: id,
    claims: use => ({ sub: id, email: `${id}@example.com`, ...((use === "userinfo" || id === "olga") && { groups: groups[id] ?? [] }) }),
  }),
  conformIdTokenClaims: false,
  features: { devInteractions: { enabled: false } },
  interactions: { policy, url: (_, interaction) => `/interaction/${interaction.uid}` },
  cookies: { keys: ["for tests"] },
  ttl: { Session: 3600, Interaction: 600, Grant: 600, IdToken: 600, AccessToken: 600 },
  async loadExistingGrant({ oidc }) {
    const grant = new oidc.provider.Grant({ clientId: oidc.client.clientId, accountId: oidc.session.accountId })
    grant.addOIDCScope("openid profile email")
    await grant.save()
    return grant
  },
})

provider.use(async (ctx, next) => {
  if (!ctx.path.startsWith("/interaction/")) return next()
  if (!ctx.search) {
    ctx.type = "html"
    ctx.body = "<title>Provider</title><link rel=icon href=data:,><form><label>Account <input name=account></label><button>Continue</button></form>"
    return
  }
  const accountId = ctx.query.account
  const ts = Math.floor(Date.now() / 1000) - (accountId === "late" ? 600 : 0)
  await provider.interactionFinished(ctx.req, ctx.res, { login: { accountId, ts } })
  ctx.respond = false
})

provider.listen({ fd: 3 })
