// The daemon's options: defaults < file < environment < flags. The only place that reads the
// environment. Absent means the default; an option that is unknown or does not parse means that the
// daemon refuses to start, naming option and origin.
//
// An option that sets a field of a room's own struct has its default there, and its text goes
// straight into that field: options.cc has one entry for it and nothing else is to be wired.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/socket_path.h"
#include "common/status.h"
#include "server/cache/cache.h"
#include "server/catalog/mysql_catalog.h"
#include "server/node/node.h"
#include "server/rpc/peer_options.h"
#include "server/rpc/server.h"
#include "server/storage/posix_storage.h"
#include "server/transport/tcp_transport.h"

namespace cairn::daemon {

// What a member's memory is read over.
enum class TransportKind { kAuto, kRdma, kTcp };
// What TLS is for: what members say to each other, or what they read of each other, too.
enum class Encrypt { kControl, kAll };

struct Options {
  // Thrift; the fd channel's stands beside it. ParseOptions makes an ordinary user's the user's own.
  std::string socket = kDefaultSocketPath;
  uint32_t socket_mode = 0666;  // who may connect; every call checks the uid

  // node.engine.budget_bytes 0: half of what binds and is available. storage.root empty: nothing
  // outlives memory. The daemon fills in what follows from other options or from this life of it:
  // names, versions, the node's idea of storage.
  cache::Options cache;
  storage::PosixOptions storage;
  node::Options node;
  rpc::Options rpc;
  // The ring is node.engine.ring; what peers and tcp need of it the daemon fills in.
  rpc::PeersOptions peers;
  transport::TcpReaderOptions tcp;
  TransportKind transport = TransportKind::kAuto;
  // The members stand in the catalog: node.engine.ring has none before a daemon knows its seat (ring_seat.h).
  bool members_from_catalog = false;
  bool ring_rank_auto = false;  // node.engine.ring.rank is none: any that is empty or lost
  std::string ring_address;     // of the catalog: where others reach this node
  int64_t ring_takeover_after_seconds = 15;  // of the catalog: a beat that stands still for so long
  int ring_size = 0;  // of the catalog: of the ring where the cluster has none yet; 0: none is made
  Encrypt encrypt = Encrypt::kControl;
  int data_port = 0;  // of the transport, at this member's address; 0: the control port + 1

  std::string catalog_path;  // SQLite file; empty: no catalog there
  // A catalog in a database server, where a host or socket is named; its cluster is the ring's. The password is read
  // from the file each time the catalog is opened.
  catalog::MysqlOptions mysql;
  std::string mysql_password_file;
  bool UsesMysql() const { return !mysql.host.empty() || !mysql.socket.empty(); }
  catalog::MysqlOptions Mysql() const;  // with all that follows from the ring; without the password

  uint64_t scan_memory_bytes = 0;      // 0: a part of the budget
  int64_t drain_timeout_seconds = 60;  // SIGTERM to exit, at most

  std::string log_dir;             // empty: standard error
  std::string log_level = "info";  // info, warning, error
  std::string failpoints;          // for tests: common/failpoint.h, each point for one life

  Status Validate() const;
};

struct ParsedOptions {
  Options options;
  // By option name: "default", "file PATH", "environment NAME" or "flag". A default that the
  // environment speaks against says so: "default; XDG_RUNTIME_DIR is not used: …".
  std::map<std::string, std::string> origins;
  bool check_config = false;
  bool print_config = false;
  bool daemon_role = false;  // the keeper's child
  std::string config_path;   // the file, by flag or environment; empty: none

  // Of a check that a keeper runs before it replaces its daemon:
  bool print_arguments = false;  // those of a daemon with these options
  uint64_t settled_budget = 0;   // the budget where the options name none; 0: to be settled now
  int keeper_version = 0;        // of the keeper's protocol; 0: nobody asks
  std::string message;           // --help or --version: print it and exit 0
};

// `environment` as in environ(7): "NAME=value". INVALID_ARGUMENT names the option, the value and
// its origin.
StatusOr<ParsedOptions> ParseOptions(const std::vector<std::string>& arguments,
                                     const std::vector<std::string>& environment);

// Of the wire to the ring's other members. `data_address`: where this member's transport is read.
rpc::PeersOptions PeersOf(const Options& options, const std::string& data_address);
// Where this member's transport is to listen: ADDRESS:PORT. INVALID_ARGUMENT names the option.
StatusOr<std::string> DataAddress(const Options& options);

// One line per option: "memory.budget = 8GiB    # flag".
std::string PrintConfig(const ParsedOptions& parsed);

// The flags that give a child the same options.
std::vector<std::string> AsFlags(const ParsedOptions& parsed);

// "--socket=" and the like: beginnings of the flags of options that the keeper itself uses. AsFlags
// has each of them in any case.
std::vector<std::string> KeepersFlags();

// "8GiB", "512 MiB", "4096": bytes; units B, KiB, MiB, GiB, TiB.
StatusOr<uint64_t> ParseBytes(absl::string_view text);
std::string FormatBytes(uint64_t bytes);  // the shortest exact form

}  // namespace cairn::daemon
