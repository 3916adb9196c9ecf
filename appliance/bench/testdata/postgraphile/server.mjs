// Serves the database DATABASE_URL through PostGraphile at PORT, with one process for each processor.
import cluster from "node:cluster";
import { createServer } from "node:http";
import { availableParallelism } from "node:os";
import { postgraphile } from "postgraphile";
import { makePgService } from "postgraphile/adaptors/pg";
import { grafserv } from "postgraphile/grafserv/node";
import { PostGraphileAmberPreset } from "postgraphile/presets/amber";

if (cluster.isPrimary) {
  for (let i = 0; i < availableParallelism(); i++) cluster.fork();
  cluster.on("exit", () => process.exit(1));
} else {
  const service = postgraphile({
    extends: [PostGraphileAmberPreset],
    pgServices: [makePgService({ connectionString: process.env.DATABASE_URL, schemas: ["public"] })],
    grafserv: { graphqlPath: "/v1/graphql", watch: false },
    grafast: { explain: false },
    schema: { defaultBehavior: "+list -connection" },
  });
  const server = createServer();
  await service.createServ(grafserv).addTo(server);
  server.listen(Number(process.env.PORT), "127.0.0.1");
}
