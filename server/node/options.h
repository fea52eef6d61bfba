// The options of the node and of the classes it is made of.
#pragma once

#include <cstddef>
#include <string>

#include "common/clock.h"
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
  int batch_rows = 500;  // of one transaction
  // More rows than these do not wait to be written: all is then read from the engine, and written anew.
  size_t max_rows = 10'000;
  // Wait after a failure, doubled from the least to the most.
  int retry_min_ms = 100;
  int retry_max_ms = 30'000;
};

struct Options {
  engine::Options engine;
  journal::Options journal;
  SessionsOptions sessions;
  RecorderOptions recorder;
  int verify_threads = 2;
  int max_client_threads = 128;  // two for each user with connections; further users share them
  // How often is looked whether the storage at the root is still the same.
  MonotonicNanos storage_look_interval = kNanosPerSecond;
  std::string name;  // host name: in replies, and in the catalog as the holder of parts
  std::string version;
  std::string fd_socket;  // path that hello names
  std::string storage_root;
  // For tests: the engine's invariants after every event, at a cost that grows with what the node
  // holds.
  bool check_invariants = false;
};

}  // namespace cairn::node
