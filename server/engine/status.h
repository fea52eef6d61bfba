// What `status` shows.
#pragma once

#include "server/engine/admission.h"
#include "server/engine/cluster.h"
#include "server/engine/opening.h"
#include "server/engine/storage_root.h"

namespace cairn::engine {

// Everything it reads; none of it is changed.
struct StatusSources {
  const Options& options;
  const Mode& mode;
  const StorageRoot& storage_root;
  const Outbox& out;
  const Callers& callers;
  const Jobs& jobs;
  const Sessions& sessions;
  const Leases& leases;
  const Ledger& ledger;
  const Parts& parts;
  const Persistence& persistence;
  const Standing& standing;
  const Cluster& cluster;
};
reply::Status StatusOf(const StatusSources& from, const event::Status& asked);

}  // namespace cairn::engine
