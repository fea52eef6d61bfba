// The options of the node and of the classes it is made of.
#pragma once

#include <cstddef>
#include <string>

#include "common/clock.h"
#include "common/status.h"
#include "server/engine/engine.h"
#include "server/journal/journal.h"

namespace cairn::node {

struct SessionsOptions {
  // Connections to the fd socket that have not attached yet, of one user and of all.
  size_t max_pending_of_user = 64;
  size_t max_pending = 1024;
  MonotonicNanos attach_timeout = 10 * kNanosPerSecond;
};

struct RecorderOptions {
  std::string backend = "sqlite";  // as status names it
  int batch_rows = 500;            // of one transaction
  // More rows than these do not wait to be written: all is then read from the engine, and written anew.
  size_t max_rows = 10'000;
  // Wait after a failure, doubled from the least to the most.
  int retry_min_ms = 100;
  int retry_max_ms = 30'000;
  // How often is looked again at jobs of which not everything was known; 0: only when the source says so.
  int64_t look_again_ms = 0;
  // How often a member of a ring says how far it has come, and looks whether the catalog still knows that;
  // 0: never.
  int64_t mark_ms = 15'000;
};

// What other members read from this node's memory.
struct GranterOptions {
  size_t max_grants = 4096;
  // A grant under which nothing is read for so long is revoked.
  MonotonicNanos without_progress = 10 * kNanosPerSecond;
  Status Validate() const;  // names the option
};

// What this node reads from other members' memory.
struct MoverOptions {
  // Of reads that are under way. Each is of one block.
  uint64_t in_flight_bytes = 256 << 20;
  uint64_t in_flight_bytes_per_peer = 64 << 20;
  size_t reads_per_peer = 256;  // however short; below the transport's bound
  // Of fetches that have grants; further ones wait, lest their grants end unused.
  size_t active_fetches = 16;
  // Of replicas, in all; 0: as fast as it goes.
  uint64_t replication_bytes_per_second = 0;
  int threads = 4;  // that ask for grants; each may wait for a member
  MonotonicNanos grant_timeout = 5 * kNanosPerSecond;
  MonotonicNanos read_timeout = 30 * kNanosPerSecond;  // of one block, its wait for others included
  // After a source's failure; doubles with each until a block of it has verified.
  MonotonicNanos back_off = kNanosPerSecond / 4;
  int source_tries = 2;       // failures in a row after which a fetch drops a source …
  int last_source_tries = 5;  // … and while it has no other
  MonotonicNanos advance_interval = kNanosPerSecond / 5;  // of event::FetchAdvanced
  Status Validate() const;                                // names the option
};

struct Options {
  engine::Options engine;
  journal::Options journal;
  SessionsOptions sessions;
  RecorderOptions recorder;
  GranterOptions granter;
  MoverOptions mover;
  int verify_threads = 2;
  int max_client_threads = 128;  // two for each user with connections; further users share them
  // How often is looked whether the storage at the root is still the same.
  MonotonicNanos storage_look_interval = kNanosPerSecond;
  std::string name;  // host name: in replies, and in the catalog of a node that is alone
  std::string version;
  std::string fd_socket;  // path that hello names
  std::string storage_root;
  // For tests: the engine's invariants after every event, at a cost that grows with what the node
  // holds.
  bool check_invariants = false;
};

}  // namespace cairn::node
