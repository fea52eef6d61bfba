// The daemon's options: defaults < file < environment < flags. The only place that reads the
// environment. Absent means the default; unknown or bad means that the daemon refuses to start,
// naming option and origin.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/policy.h"
#include "common/status.h"

namespace cairn::daemon {

inline constexpr char kVersion[] = "0.1.0";

struct Options {
  std::string socket = "/run/cairn/cairn.sock";  // Thrift; the fd channel's is this + ".fd"
  uint32_t socket_mode = 0666;                   // who may connect; every call checks the uid

  uint64_t memory_budget = 0;        // bytes of slabs; 0: half of what binds and is available
  std::vector<uint64_t> pool_slabs;  // sizes to fault in at start, before any job's are known
  int64_t prefault_threads = 2;

  std::string storage_root;     // empty: nothing outlives memory
  int64_t storage_threads = 4;  // writers of one file
  bool storage_direct = true;   // O_DIRECT where the file system takes it
  JobPolicy policy;             // of jobs that set none

  std::string catalog_path;  // SQLite file; empty: no catalog
  uint64_t journal_bytes = 128ull << 20;

  int64_t max_sessions = 4096;
  int64_t max_connections = 4096;
  int64_t max_waiting = 16384;         // parked callers
  int64_t max_persists = 2;            // checkpoints being written at once
  int64_t drain_timeout_seconds = 60;  // SIGTERM to exit, at most

  std::string log_dir;             // empty: standard error
  std::string log_level = "info";  // info, warning, error
  std::string failpoints;          // for tests: common/failpoint.h, each point for one life

  Status Validate() const;
};

struct ParsedOptions {
  Options options;
  std::map<std::string, std::string>
      origins;  // option name → "default", "file PATH", "environment NAME", "flag"
  bool check_config = false;
  bool print_config = false;
  bool daemon_role = false;  // the keeper's child
  std::string message;       // --help or --version: print it and exit 0
};

// `environment` as in environ(7): "NAME=value". INVALID_ARGUMENT names the option, the value and
// its origin.
StatusOr<ParsedOptions> ParseOptions(const std::vector<std::string>& arguments,
                                     const std::vector<std::string>& environment);

// One line per option: "memory.budget = 8GiB    # flag".
std::string PrintConfig(const ParsedOptions& parsed);

// The flags that give a child the same options.
std::vector<std::string> AsFlags(const ParsedOptions& parsed);

// "8GiB", "512 MiB", "4096": bytes; units B, KiB, MiB, GiB, TiB.
StatusOr<uint64_t> ParseBytes(absl::string_view text);
std::string FormatBytes(uint64_t bytes);  // the shortest exact form

}  // namespace cairn::daemon
