// The values in effect.
import { looks, step } from "./harness.mjs"

export default async function settings() {
  await step("the settings' looks", () => looks("/settings", "settings", "viewer", page => page.getByText("server.listen").waitFor()))
}
