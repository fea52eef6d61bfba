// One file: each option stands once, in one table, with how it is read and checked.
#include "server/daemon/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <functional>
#include <iterator>
#include <type_traits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/policy.h"
#include "common/ring_nodes.h"
#include "common/tcp_address.h"
#include "common/version.h"
#include "server/daemon/ring_options.h"
#include "server/node/rows.h"

namespace cairn::daemon {
namespace {

constexpr char kEnvironmentPrefix[] = "CAIRND_";

// The keeper binds the sockets and makes the journal's memory, once.
constexpr absl::string_view kKeepersOptions[] = {"socket", "socket.mode", "journal.bytes"};

bool IsKeepers(absl::string_view name) {
  return std::find(std::begin(kKeepersOptions), std::end(kKeepersOptions), name) !=
         std::end(kKeepersOptions);
}

// One option: how its text becomes a value and back. Everything else (flag, environment name, file
// key, help, --print-config) follows from the name. docs/operations.md lists them all, which
// options_test checks.
struct Definition {
  std::string name;  // "memory.budget"
  std::string help;
  std::function<Status(Options*, const std::string&)> set;
  std::function<std::string(const Options&)> get;
  bool is_list = false;  // of several flags each is one item; else the last one counts
};

// Each kind of option takes `field`: [](auto& options) -> auto& { return options.…; }.

template <typename Field>
Definition Text(std::string name, Field field, std::string help) {
  return {std::move(name), std::move(help),
          [field](Options* options, const std::string& text) {
            field(*options) = text;
            return absl::OkStatus();
          },
          [field](const Options& options) { return field(options); }};
}

template <typename Field>
Definition Bytes(std::string name, Field field, std::string help) {
  return {std::move(name), std::move(help),
          [field](Options* options, const std::string& text) {
            StatusOr<uint64_t> bytes = ParseBytes(text);
            if (bytes.ok()) field(*options) = *bytes;
            return bytes.status();
          },
          [field](const Options& options) { return FormatBytes(field(options)); }};
}

template <typename Field>
Definition Number(std::string name, Field field, int64_t low, int64_t high, std::string help) {
  return {
      std::move(name), std::move(help),
      [=](Options* options, const std::string& text) -> Status {
        int64_t value = 0;
        if (!absl::SimpleAtoi(text, &value)) {
          return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is not a whole number"));
        }
        if (value < low || value > high) {
          return absl::InvalidArgumentError(absl::StrCat(value, " is outside ", low, " … ", high));
        }
        auto& number = field(*options);
        number = static_cast<std::remove_reference_t<decltype(number)>>(value);
        return absl::OkStatus();
      },
      [field](const Options& options) { return absl::StrCat(field(options)); }};
}

StatusOr<bool> ParseBool(const std::string& text) {
  if (text == "true" || text == "yes" || text == "1") return true;
  if (text == "false" || text == "no" || text == "0") return false;
  return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is neither true nor false"));
}

template <typename Field>
Definition Bool(std::string name, Field field, std::string help) {
  return {
      std::move(name), std::move(help),
      [field](Options* options, const std::string& text) -> Status {
        CAIRN_ASSIGN_OR_RETURN(field(*options), ParseBool(text));
        return absl::OkStatus();
      },
      [field](const Options& options) { return std::string(field(options) ? "true" : "false"); }};
}

// "1GiB*8, 64MiB"
StatusOr<std::vector<uint64_t>> ParseSlabs(const std::string& text) {
  constexpr uint64_t kMaxSlabs = 100'000;
  std::vector<uint64_t> slabs;
  for (absl::string_view item : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    const std::pair<absl::string_view, absl::string_view> halves =
        absl::StrSplit(item, absl::MaxSplits('*', 1));
    StatusOr<uint64_t> bytes = ParseBytes(halves.first);
    if (!bytes.ok()) return bytes.status();
    uint64_t count = 1;
    if (!halves.second.empty() &&
        !absl::SimpleAtoi(absl::StripAsciiWhitespace(halves.second), &count)) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", halves.second, "\" is not a number of slabs"));
    }
    if (*bytes == 0 || count == 0 || count > kMaxSlabs - slabs.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", item, "\": wants 1 … ", kMaxSlabs, " slabs of at least one byte"));
    }
    slabs.insert(slabs.end(), count, *bytes);
  }
  return slabs;
}

std::string PrintSlabs(const std::vector<uint64_t>& slabs) {
  std::vector<std::string> items;
  for (size_t i = 0; i < slabs.size();) {
    size_t end = i;
    while (end < slabs.size() && slabs[end] == slabs[i]) ++end;
    items.push_back(end - i == 1 ? FormatBytes(slabs[i])
                                 : absl::StrCat(FormatBytes(slabs[i]), "*", end - i));
    i = end;
  }
  return absl::StrJoin(items, ",");
}

Definition SocketMode() {
  return {"socket.mode", "permissions of both sockets, octal",
          [](Options* options, const std::string& text) -> Status {
            char* end = nullptr;
            const unsigned long mode = std::strtoul(text.c_str(), &end, 8);
            if (text.empty() || *end != '\0' || mode > 0777) {
              return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is not 0 … 0777"));
            }
            options->socket_mode = static_cast<uint32_t>(mode);
            return absl::OkStatus();
          },
          [](const Options& options) {
            char text[8];
            std::snprintf(text, sizeof(text), "%04o", options.socket_mode & 0777u);
            return std::string(text);
          }};
}

Definition PoolSlabs() {
  return {"pool.slabs",
          "slabs to fault in at start, before any job's sizes are known: 1GiB*8,64MiB",
          [](Options* options, const std::string& text) -> Status {
            CAIRN_ASSIGN_OR_RETURN(options->node.engine.pool_slabs, ParseSlabs(text));
            return absl::OkStatus();
          },
          [](const Options& options) { return PrintSlabs(options.node.engine.pool_slabs); }};
}

Definition StorageScope() {
  return {"storage.scope", "\"shared\": every node sees the same root",
          [](Options*, const std::string& text) -> Status {
            if (text == "shared") return absl::OkStatus();
            if (text == "node") {
              return absl::UnimplementedError("\"node\" is not supported yet; only \"shared\" is");
            }
            return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is not \"shared\""));
          },
          [](const Options&) { return std::string("shared"); }};
}

Definition PersistModeOption() {
  return {"persist.mode", "what goes to storage: on-demand, every or newest",
          [](Options* options, const std::string& text) -> Status {
            CAIRN_ASSIGN_OR_RETURN(options->node.engine.default_policy.mode,
                                   ParsePersistMode(text));
            return absl::OkStatus();
          },
          [](const Options& options) {
            return std::string(PersistModeName(options.node.engine.default_policy.mode));
          }};
}

Definition RingMembers() {
  return {"ring.members",
          "list: those of ring.nodes; catalog: those of the database, where spares take lost ranks",
          [](Options* options, const std::string& text) -> Status {
            if (text != "list" && text != "catalog") {
              return absl::InvalidArgumentError(
                  absl::StrCat("\"", text, "\" is none of list, catalog"));
            }
            options->members_from_catalog = text == "catalog";
            return absl::OkStatus();
          },
          [](const Options& options) {
            return std::string(options.members_from_catalog ? "catalog" : "list");
          }};
}

// "ring", or "groups:FACTOR:JUMP".
Definition RingPlacement() {
  return {"ring.placement",
          "who keeps whose copies: ring (the next members), or groups:FACTOR:JUMP (FACTOR members "
          "whose places "
          "are JUMP apart keep each other's)",
          [](Options* options, const std::string& text) -> Status {
            engine::Placement placement;
            const std::vector<std::string> words = absl::StrSplit(text, ':');
            const bool groups = words.size() == 3 && words[0] == "groups" &&
                                absl::SimpleAtoi(words[1], &placement.factor) &&
                                absl::SimpleAtoi(words[2], &placement.jump) &&
                                placement.factor >= 2 && placement.jump >= 1;
            if (text != "ring" && !groups) {
              return absl::InvalidArgumentError(absl::StrCat(
                  "\"", text, "\" is neither ring nor groups:FACTOR:JUMP (at least 2 and 1)"));
            }
            options->node.engine.ring.placement = text == "ring" ? engine::Placement{} : placement;
            return absl::OkStatus();
          },
          [](const Options& options) {
            const engine::Placement& placement = options.node.engine.ring.placement;
            return placement.Groups()
                       ? absl::StrCat("groups:", placement.factor, ":", placement.jump)
                       : std::string("ring");
          }};
}

Definition RingRank() {
  return {
      "ring.rank",
      "this node's place in ring.nodes; with ring.members = catalog the one that it wants, or "
      "auto: one that "
      "is empty or lost",
      [](Options* options, const std::string& text) -> Status {
        engine::Rank rank = engine::kNoRank;
        options->ring_rank_auto = text == "auto";
        if (!options->ring_rank_auto && (!absl::SimpleAtoi(text, &rank) || rank < 0)) {
          return absl::InvalidArgumentError(
              absl::StrCat("\"", text, "\" is neither a rank nor auto"));
        }
        options->node.engine.ring.rank = rank;
        return absl::OkStatus();
      },
      [](const Options& options) {
        const engine::Rank rank = options.node.engine.ring.rank;
        return options.ring_rank_auto ? "auto" : rank == engine::kNoRank ? "" : absl::StrCat(rank);
      }};
}

Definition RingNodes() {
  return {"ring.nodes",
          "the members of the ring and where each listens, RANK=ADDRESS:PORT,…, the same on all",
          [](Options* options, const std::string& text) -> Status {
            CAIRN_ASSIGN_OR_RETURN(options->node.engine.ring.members, ParseRingNodes(text));
            return absl::OkStatus();
          },
          [](const Options& options) { return RingNodesText(options.node.engine.ring.members); },
          /*is_list=*/true};
}

Definition LogLevel() {
  return {"log.level", "info, warning or error",
          [](Options* options, const std::string& text) -> Status {
            if (text != "info" && text != "warning" && text != "error") {
              return absl::InvalidArgumentError(
                  absl::StrCat("\"", text, "\" is none of info, warning, error"));
            }
            options->log_level = text;
            return absl::OkStatus();
          },
          [](const Options& options) { return options.log_level; }};
}

// One of few words.
template <typename Kind, typename Get>
Definition Choice(std::string option, std::vector<std::pair<std::string, Kind>> words, Get get,
                  std::string help) {
  std::string all;
  for (const auto& [word, kind] : words) absl::StrAppend(&all, all.empty() ? "" : ", ", word);
  return {std::move(option), std::move(help),
          [words, get, all](Options* options, const std::string& text) -> Status {
            for (const auto& [word, kind] : words) {
              if (text != word) continue;
              get(*options) = kind;
              return absl::OkStatus();
            }
            return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is none of ", all));
          },
          [words, get](const Options& options) {
            for (const auto& [word, kind] : words) {
              if (kind == get(options)) return word;
            }
            return std::string();
          }};
}

// One function: the table of all options.
std::vector<Definition> MakeDefinitions() {
  constexpr int64_t kMaxSteps = int64_t{1} << 40;
  constexpr int64_t kMaxSeconds = int64_t{1} << 32;
  return {
      Text(
          "socket", [](auto& o) -> auto& { return o.socket; },
          "Unix socket for clients; a second one, with .fd added, stands beside it"),
      SocketMode(),
      Bytes(
          "memory.budget", [](auto& o) -> auto& { return o.node.engine.budget_bytes; },
          "memory for checkpoints; 0: half of the cgroup's limit and of what is available, beside "
          "what the daemon needs itself"),
      Number(
          "memory.finished_keep_seconds",
          [](auto& o) -> auto& { return o.node.engine.finished_keep_seconds; }, 0, kMaxSeconds,
          "the newest step of a finished job that no storage takes stays at least so long"),
      Bytes(
          "memory.replicas", [](auto& o) -> auto& { return o.node.engine.ring.replica_bytes; },
          "how much of the budget parts that are kept for other members may take; 0: half of it"),
      PoolSlabs(),
      Number(
          "pool.threads", [](auto& o) -> auto& { return o.cache.prefault_threads; }, 1, 256,
          "threads that fault memory in"),
      Text(
          "storage.root", [](auto& o) -> auto& { return o.storage.root; },
          "directory for persisted checkpoints; empty: nothing outlives memory"),
      StorageScope(),
      Number(
          "storage.threads", [](auto& o) -> auto& { return o.storage.threads; }, 1, 64,
          "writers of a checkpoint's blocks; each holds one block in memory"),
      Bool(
          "storage.direct", [](auto& o) -> auto& { return o.storage.direct; },
          "write past the page cache where the file system can"),
      Bool(
          "storage.require_marker", [](auto& o) -> auto& { return o.storage.require_marker; },
          "a root without the marker that `cairn storage init` makes counts as away: for mounts"),
      Bytes(
          "storage.scan_memory", [](auto& o) -> auto& { return o.scan_memory_bytes; },
          "memory for what one reading of a job finds, beside the budget; 0: 1/16 of the "
          "budget, at least 64MiB"),
      Number(
          "storage.keep_last",
          [](auto& o) -> auto& { return o.node.engine.default_policy.keep_last; }, 0, kMaxSteps,
          "complete steps to keep as files; 0 keeps all"),
      Number(
          "storage.keep_every",
          [](auto& o) -> auto& { return o.node.engine.default_policy.keep_every; }, 0, kMaxSteps,
          "with keep_last: keep every step that this divides, too; 0: none"),
      Number(
          "storage.keep_abandoned_seconds",
          [](auto& o) -> auto& { return o.node.engine.keep_abandoned_seconds; }, 0, kMaxSeconds,
          "with keep_last: files that a newer life went on from before are kept at least so long"),
      PersistModeOption(),
      Number(
          "persist.every", [](auto& o) -> auto& { return o.node.engine.default_policy.every; }, 1,
          kMaxSteps, "with mode every: steps that this divides"),
      Number(
          "persist.concurrent", [](auto& o) -> auto& { return o.node.engine.max_persists; }, 1, 64,
          "checkpoints being written at once, each of another job"),
      Text(
          "catalog.path", [](auto& o) -> auto& { return o.catalog_path; },
          "SQLite file with an index of what exists; empty: none is kept"),
      Text(
          "catalog.mysql.host", [](auto& o) -> auto& { return o.mysql.host; },
          "instead: a MySQL or MariaDB server for the whole ring.cluster; a name or an address"),
      Number(
          "catalog.mysql.port", [](auto& o) -> auto& { return o.mysql.port; }, 1, 65535,
          "of that host"),
      Text(
          "catalog.mysql.socket", [](auto& o) -> auto& { return o.mysql.socket; },
          "instead of the host: the socket of a server on this machine"),
      Text(
          "catalog.mysql.database", [](auto& o) -> auto& { return o.mysql.database; },
          "which exists; its tables are made"),
      Text(
          "catalog.mysql.user", [](auto& o) -> auto& { return o.mysql.user; }, "whom it knows"),
      Text(
          "catalog.mysql.password_file", [](auto& o) -> auto& { return o.mysql_password_file; },
          "file with the user's password, which nobody else may read; empty: no password"),
      Text(
          "catalog.mysql.tls_ca", [](auto& o) -> auto& { return o.mysql.tls_ca; },
          "PEM file with the authority that signed the server's certificate; empty: no TLS"),
      Bytes(
          "journal.bytes", [](auto& o) -> auto& { return o.node.journal.bytes; },
          "memory for the facts that survive the daemon's death"),
      Number(
          "limits.sessions", [](auto& o) -> auto& { return o.node.engine.max_sessions; }, 1,
          1'000'000, "clients at once"),
      Number(
          "limits.connections", [](auto& o) -> auto& { return o.rpc.max_connections; }, 1,
          1'000'000, "Thrift connections at once"),
      Number(
          "limits.user_percent", [](auto& o) -> auto& { return o.node.engine.user_percent; }, 1,
          100,
          "how much of each of these limits one user may use; uid 0 and who runs the daemon may "
          "use all"),
      Number(
          "limits.user_memory_percent",
          [](auto& o) -> auto& { return o.node.engine.user_memory_percent; }, 1, 100,
          "how much of the budget one user may hold; uid 0 and who runs the daemon may hold all"),
      Number(
          "limits.jobs", [](auto& o) -> auto& { return o.node.engine.max_jobs; }, 1, 10'000'000,
          "jobs in use or in memory at once; those that only storage or other members have do not "
          "count"),
      Number(
          "limits.leases", [](auto& o) -> auto& { return o.node.engine.max_leases; }, 1,
          100'000'000, "objects that readers hold at once"),
      Number(
          "limits.waiting", [](auto& o) -> auto& { return o.node.engine.max_waiting; }, 1,
          10'000'000, "callers waiting at once"),
      Text(
          "ring.cluster", [](auto& o) -> auto& { return o.node.engine.ring.cluster; },
          "name of the ring, which all its members share"),
      RingMembers(),
      RingRank(),
      RingNodes(),
      Text(
          "ring.address", [](auto& o) -> auto& { return o.ring_address; },
          "with ring.members = catalog: ADDRESS:PORT where the other members reach this node"),
      Number(
          "ring.size", [](auto& o) -> auto& { return o.ring_size; }, 0, engine::kMaxCatalogMembers,
          "with ring.members = catalog: how many ranks the ring gets, where the database has none "
          "of the "
          "cluster yet; later `cairn ring resize` says it"),
      Number(
          "ring.takeover_after_seconds",
          [](auto& o) -> auto& { return o.ring_takeover_after_seconds; }, 5, 3600,
          "with ring.members = catalog: a member of which the database heard nothing for so long, "
          "and that does not "
          "answer, loses its rank to a spare"),
      RingPlacement(),
      Number(
          "ring.replicas", [](auto& o) -> auto& { return o.node.engine.ring.replicas; }, 0,
          kMostReplicas, "copies on other members, of jobs whose policy names no number"),
      Number(
          "ring.lost_after_seconds",
          [](auto& o) -> auto& { return o.node.engine.ring.lost_after_seconds; }, 1, kMaxSeconds,
          "a member that is silent for so long counts as lost"),
      Choice<TransportKind>(
          "transport",
          {{"auto", TransportKind::kAuto},
           {"rdma", TransportKind::kRdma},
           {"tcp", TransportKind::kTcp}},
          [](auto& o) -> auto& { return o.transport; },
          "what members read each other's memory over: rdma, tcp, or auto: RDMA where both ends "
          "have it"),
      Number(
          "peers.data_port", [](auto& o) -> auto& { return o.data_port; }, 0, 65'535,
          "port at this member's address where others read its memory; 0: the next one after that "
          "of ring.nodes"),
      Text(
          "peers.ca", [](auto& o) -> auto& { return o.peers.tls.ca; },
          "certificate of the cluster's authority, PEM; `cairn cluster init` makes these files"),
      Text(
          "peers.cert", [](auto& o) -> auto& { return o.peers.tls.cert; },
          "this member's certificate, PEM; it names cluster and rank"),
      Text(
          "peers.key", [](auto& o) -> auto& { return o.peers.tls.key; },
          "private key of peers.cert, PEM"),
      Choice<Encrypt>(
          "peers.encrypt", {{"control", Encrypt::kControl}, {"all", Encrypt::kAll}},
          [](auto& o) -> auto& { return o.encrypt; },
          "what the certificates encrypt: control, what members say to each other; all: what they "
          "read of each other's memory, too, which excludes RDMA. The same on all members"),
      Bool(
          "peers.insecure", [](auto& o) -> auto& { return o.peers.insecure; },
          "without certificates: listen at an address that other hosts reach, too. Everybody on "
          "that network may then pose as a member"),
      Bytes(
          "peers.replication_rate",
          [](auto& o) -> auto& { return o.node.mover.replication_bytes_per_second; },
          "bytes of replicas that are read from others each second, at most; 0: no limit"),
      Bytes(
          "peers.in_flight", [](auto& o) -> auto& { return o.node.mover.in_flight_bytes; },
          "bytes of reads from all members that are under way at once"),
      Bytes(
          "peers.in_flight_per_peer",
          [](auto& o) -> auto& { return o.node.mover.in_flight_bytes_per_peer; },
          "the same, from one member"),
      Number(
          "peers.streams", [](auto& o) -> auto& { return o.tcp.streams; }, 1, 8,
          "TCP streams to each member that is read from"),
      Number(
          "drain.timeout_seconds", [](auto& o) -> auto& { return o.drain_timeout_seconds; }, 0,
          86'400, "from SIGTERM to exit, at most"),
      Text(
          "log.dir", [](auto& o) -> auto& { return o.log_dir; },
          "directory for logs; empty: standard error"),
      LogLevel(),
      Text(
          "test.failpoints", [](auto& o) -> auto& { return o.failpoints; },
          "for tests: where the daemon dies, POINT[@LIFE][:N][=ERRNO],…"),
  };
}

const std::vector<Definition>& Definitions() {
  static const auto* definitions = new std::vector<Definition>(MakeDefinitions());
  return *definitions;
}

const Definition* FindDefinition(absl::string_view name) {
  for (const Definition& definition : Definitions()) {
    if (definition.name == name) return &definition;
  }
  return nullptr;
}

std::string EnvironmentName(absl::string_view option) {
  return absl::StrCat(kEnvironmentPrefix,
                      absl::AsciiStrToUpper(absl::StrReplaceAll(option, {{".", "_"}})));
}

Status Set(ParsedOptions* parsed, const Definition& definition, const std::string& text,
           std::string origin) {
  const Status status = definition.set(&parsed->options, text);
  if (!status.ok()) {
    return Annotate(status, absl::StrCat(definition.name, " (", origin, ")"));
  }
  parsed->origins[definition.name] = std::move(origin);
  return absl::OkStatus();
}

Status ApplyFile(ParsedOptions* parsed, const std::string& path) {
  std::ifstream file(path);
  if (!file) return ErrnoStatus(errno, absl::StrCat("config: ", path));
  std::vector<CLI::ConfigItem> items;
  try {
    items = CLI::ConfigTOML().from_config(file);
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("config: ", path, ": ", error.what()));
  }
  for (const CLI::ConfigItem& item : items) {
    if (item.name == "++" || item.name == "--") continue;  // CLI11's marks around a section
    const Definition* definition = FindDefinition(item.fullname());
    if (definition == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(item.fullname(), " (file ", path, "): no such option"));
    }
    CAIRN_RETURN_IF_ERROR(
        Set(parsed, *definition, absl::StrJoin(item.inputs, ","), absl::StrCat("file ", path)));
  }
  return absl::OkStatus();
}

Status ApplyEnvironment(ParsedOptions* parsed, const std::vector<std::string>& environment,
                        std::string* config_path) {
  for (const std::string& entry : environment) {
    const std::pair<std::string, std::string> variable =
        absl::StrSplit(entry, absl::MaxSplits('=', 1));
    if (!absl::StartsWith(variable.first, kEnvironmentPrefix)) continue;
    if (variable.first == "CAIRND_CONFIG") {
      *config_path = variable.second;
      continue;
    }
    const Definition* found = nullptr;
    for (const Definition& definition : Definitions()) {
      if (EnvironmentName(definition.name) == variable.first) found = &definition;
    }
    if (found == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(variable.first, " (environment): no such option"));
    }
    CAIRN_RETURN_IF_ERROR(
        Set(parsed, *found, variable.second, absl::StrCat("environment ", variable.first)));
  }
  return absl::OkStatus();
}

// CLI11 takes the next argument as the value of "--peers.cert=", so its empty value becomes an argument of its own.
std::vector<std::string> WithEmptyValues(const std::vector<std::string>& arguments) {
  std::vector<std::string> all;
  for (const std::string& argument : arguments) {
    absl::string_view name = argument;
    const bool empty = absl::ConsumePrefix(&name, "--") && absl::ConsumeSuffix(&name, "=") &&
                       (name == "config" || FindDefinition(name) != nullptr);
    all.push_back(empty ? absl::StrCat("--", name) : argument);
    if (empty) all.emplace_back();
  }
  return all;
}

// An ordinary user's daemon listens in that user's own directory.
void DefaultSocket(const std::vector<std::string>& environment, ParsedOptions* parsed) {
  SocketUser user = ThisProcess();
  user.runtime_dir.clear();
  for (absl::string_view variable : environment) {
    if (absl::ConsumePrefix(&variable, "XDG_RUNTIME_DIR="))
      user.runtime_dir = std::string(variable);
  }
  const StatusOr<std::string> own = OwnSocketPath(user);
  if (own.ok()) {
    parsed->options.socket = *own;
  } else if (absl::IsFailedPrecondition(own.status())) {
    parsed->origins["socket"] = absl::StrCat("default; ", own.status().message());
  }
}

// An option without those that it needs, and what the ring says of itself.
Status ValidateRing(const Options& options) {
  const engine::RingOptions& ring = options.node.engine.ring;
  if (options.ring_rank_auto) {
    return absl::InvalidArgumentError("ring.rank: auto needs ring.members = catalog");
  }
  for (const auto& [name, given] : {std::pair("ring.address", !options.ring_address.empty()),
                                    std::pair("ring.size", options.ring_size != 0)}) {
    if (given) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": needs ring.members = catalog"));
    }
  }
  if (ring.members.empty()) {
    if (ring.rank != engine::kNoRank || !ring.cluster.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("ring.nodes: empty, but ",
                       ring.cluster.empty() ? "ring.rank" : "ring.cluster", " is given"));
    }
    return absl::OkStatus();
  }
  if (ring.cluster.empty()) {
    return absl::InvalidArgumentError("ring.cluster: missing; ring.nodes is given");
  }
  if (ring.rank == engine::kNoRank) {
    return absl::InvalidArgumentError("ring.rank: missing; ring.nodes is given");
  }
  return ring.Validate();
}

// A catalog in a database server, or the mention of one without the server.
Status ValidateMysql(const Options& options) {
  const catalog::MysqlOptions mysql = options.Mysql();
  if (!options.UsesMysql()) {
    for (const auto& [name, value] :
         {std::pair("database", &mysql.database), std::pair("user", &mysql.user),
          std::pair("password_file", &options.mysql_password_file),
          std::pair("tls_ca", &mysql.tls_ca)}) {
      if (value->empty()) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("catalog.mysql.", name, ": needs catalog.mysql.host or socket"));
    }
    return absl::OkStatus();
  }
  if (!options.catalog_path.empty()) {
    return absl::InvalidArgumentError("catalog.path: there is catalog.mysql, too; one of both");
  }
  if (mysql.cluster.empty()) {
    return absl::InvalidArgumentError(
        "ring.cluster: missing; catalog.mysql needs it, to tell clusters apart (a node that is "
        "alone is a ring of one: ring.cluster, ring.rank, ring.nodes)");
  }
  return mysql.Validate();
}

// What a member says and hears: of one that has a rank.
Status ValidateWire(const Options& options) {
  CAIRN_RETURN_IF_ERROR(PeersOf(options, "").Validate());
  if (options.encrypt == Encrypt::kAll && options.peers.tls.none()) {
    return absl::InvalidArgumentError(
        "peers.encrypt: all needs certificates (peers.ca, peers.cert, peers.key)");
  }
  if (options.encrypt == Encrypt::kAll && options.transport == TransportKind::kRdma) {
    return absl::InvalidArgumentError(
        "transport: rdma carries data plain, and peers.encrypt = all forbids that; auto and tcp "
        "take TCP with TLS");
  }
  return DataAddress(options).status();
}

// All that concerns other members.
Status ValidatePeers(const Options& options) {
  const engine::Options& engine = options.node.engine;
  CAIRN_RETURN_IF_ERROR(options.members_from_catalog ? ValidateCatalogRing(options)
                                                     : ValidateRing(options));
  if (engine.budget_bytes != 0 && engine.ring.replica_bytes > engine.budget_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("memory.replicas: ", FormatBytes(engine.ring.replica_bytes),
                     " exceed memory.budget, ", FormatBytes(engine.budget_bytes)));
  }
  const node::MoverOptions& mover = options.node.mover;
  if (mover.in_flight_bytes_per_peer < kBlockBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("peers.in_flight_per_peer: ", FormatBytes(mover.in_flight_bytes_per_peer),
                     " is below one block, ", FormatBytes(kBlockBytes)));
  }
  if (mover.in_flight_bytes < mover.in_flight_bytes_per_peer) {
    return absl::InvalidArgumentError(absl::StrCat(
        "peers.in_flight: ", FormatBytes(mover.in_flight_bytes),
        " is below peers.in_flight_per_peer, ", FormatBytes(mover.in_flight_bytes_per_peer)));
  }
  if (options.members_from_catalog) return ValidateWire(AsAMember(options));
  return engine.ring.Alone() ? absl::OkStatus() : ValidateWire(options);
}

}  // namespace

rpc::PeersOptions PeersOf(const Options& options, const std::string& data_address) {
  rpc::PeersOptions peers = options.peers;
  peers.ring = options.node.engine.ring;
  peers.data_address = data_address;
  return peers;
}

StatusOr<std::string> DataAddress(const Options& options) {
  const engine::RingOptions& ring = options.node.engine.ring;
  CAIRN_ASSIGN_OR_RETURN(const TcpAddress control, TcpAddress::Parse(ring.members.at(ring.rank)));
  const int port = options.data_port != 0 ? options.data_port : control.port() + 1;
  if (port > UINT16_MAX) {
    return absl::InvalidArgumentError(
        absl::StrCat("peers.data_port: missing; there is none after ", control.port()));
  }
  const std::string data = control.WithPort(static_cast<uint16_t>(port)).ToString();
  for (const auto& [rank, address] : ring.members) {
    // What the catalog says of others keeps nobody from his own work.
    if (address != data || (ring.from_catalog && rank != ring.rank)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("peers.data_port: ", data, " is where rank ", rank, " listens (ring.nodes)"));
  }
  return data;
}

catalog::MysqlOptions Options::Mysql() const {
  catalog::MysqlOptions options = mysql;
  options.cluster = node.engine.ring.cluster;
  options.author = node::AuthorOf(node);
  return options;
}

Status Options::Validate() const {
  // sun_path holds 108 bytes with its terminator, and ".fd" is added for the second socket.
  constexpr size_t kMaxSocketPath = 104;
  if (socket.empty() || socket.size() > kMaxSocketPath) {
    return absl::InvalidArgumentError(absl::StrCat("socket: \"", socket, "\" has ", socket.size(),
                                                   " bytes, wants 1 … ", kMaxSocketPath));
  }
  if (!storage.root.empty() && storage.root[0] != '/') {
    return absl::InvalidArgumentError(
        absl::StrCat("storage.root: \"", storage.root, "\" is not an absolute path"));
  }
  constexpr uint64_t kMinJournal = 1 << 20;
  if (node.journal.bytes < kMinJournal) {
    return absl::InvalidArgumentError(
        absl::StrCat("journal.bytes: ", FormatBytes(node.journal.bytes), " is below ",
                     FormatBytes(kMinJournal)));
  }
  uint64_t pool = 0;
  for (uint64_t bytes : node.engine.pool_slabs) pool += bytes;
  if (node.engine.budget_bytes != 0 && pool > node.engine.budget_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("pool.slabs: ", FormatBytes(pool),
                                                   " in all exceed memory.budget, ",
                                                   FormatBytes(node.engine.budget_bytes)));
  }
  CAIRN_RETURN_IF_ERROR(ValidateMysql(*this));
  return ValidatePeers(*this);
}

StatusOr<ParsedOptions> ParseOptions(const std::vector<std::string>& arguments,
                                     const std::vector<std::string>& environment) {
  ParsedOptions parsed;
  for (const Definition& definition : Definitions()) parsed.origins[definition.name] = "default";
  DefaultSocket(environment, &parsed);

  CLI::App app("cairnd keeps the checkpoints of this node in memory.", "cairnd");
  std::string config_flag;
  bool version = false;
  app.add_option("--config", config_flag, "TOML file with these options (or CAIRND_CONFIG)")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_flag("--check-config", parsed.check_config, "check the options and exit");
  app.add_flag("--print-config", parsed.print_config, "print each option with its origin and exit");
  app.add_flag("--version", version, "print the version and exit");
  // Set by the keeper.
  app.add_flag("--daemon", parsed.daemon_role)->group("");
  app.add_flag("--print-arguments", parsed.print_arguments)->group("");
  app.add_option("--settled-budget", parsed.settled_budget)->group("");
  app.add_option("--keeper-version", parsed.keeper_version)->group("");
  std::map<std::string, std::string> flags;
  for (const Definition& definition : Definitions()) {
    app.add_option("--" + definition.name, flags[definition.name],
                   absl::StrCat(definition.help, " [", definition.get(parsed.options), "] (",
                                EnvironmentName(definition.name), ")"))
        ->multi_option_policy(definition.is_list ? CLI::MultiOptionPolicy::Join
                                                 : CLI::MultiOptionPolicy::TakeLast)
        ->delimiter(definition.is_list ? ',' : '\0');
  }
  std::vector<std::string> reversed = WithEmptyValues(arguments);
  std::reverse(reversed.begin(), reversed.end());
  try {
    app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    parsed.message = app.help();
    return parsed;
  } catch (const CLI::ParseError& error) {
    return absl::InvalidArgumentError(absl::StrCat(error.what(), " (flag)"));
  }
  if (version) {
    parsed.message = absl::StrCat("cairnd ", Version(), "\n");
    return parsed;
  }

  // The file comes below the environment, but the environment may name the file.
  std::string config_path;
  {
    ParsedOptions scratch = parsed;
    CAIRN_RETURN_IF_ERROR(ApplyEnvironment(&scratch, environment, &config_path));
  }
  if (!config_flag.empty()) config_path = config_flag;
  if (!config_path.empty()) CAIRN_RETURN_IF_ERROR(ApplyFile(&parsed, config_path));
  parsed.config_path = config_path;
  CAIRN_RETURN_IF_ERROR(ApplyEnvironment(&parsed, environment, &config_path));
  for (const Definition& definition : Definitions()) {
    if (app.count("--" + definition.name) == 0) continue;
    CAIRN_RETURN_IF_ERROR(Set(&parsed, definition, flags[definition.name], "flag"));
  }
  CAIRN_RETURN_IF_ERROR(parsed.options.Validate());
  return parsed;
}

std::string PrintConfig(const ParsedOptions& parsed) {
  std::string text;
  for (const Definition& definition : Definitions()) {
    absl::StrAppend(&text, definition.name, " = \"", definition.get(parsed.options), "\"  # ",
                    parsed.origins.at(definition.name), "\n");
  }
  return text;
}

std::vector<std::string> KeepersFlags() {
  std::vector<std::string> flags;
  for (absl::string_view name : kKeepersOptions) flags.push_back(absl::StrCat("--", name, "="));
  return flags;
}

std::vector<std::string> AsFlags(const ParsedOptions& parsed) {
  std::vector<std::string> flags;
  for (const Definition& definition : Definitions()) {
    if (parsed.origins.at(definition.name) == "default" && !IsKeepers(definition.name)) continue;
    flags.push_back(absl::StrCat("--", definition.name, "=", definition.get(parsed.options)));
  }
  return flags;
}

StatusOr<uint64_t> ParseBytes(absl::string_view text) {
  static constexpr std::pair<absl::string_view, int> kUnits[] = {
      {"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}, {"B", 0}};
  absl::string_view number = absl::StripAsciiWhitespace(text);
  int shift = 0;
  for (const auto& [unit, bits] : kUnits) {
    if (absl::ConsumeSuffix(&number, unit)) {
      shift = bits;
      break;
    }
  }
  uint64_t value = 0;
  if (!absl::SimpleAtoi(absl::StripAsciiWhitespace(number), &value)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" is not a size: a whole number with B, KiB, MiB, GiB or TiB"));
  }
  if (value > (uint64_t{1} << 62) >> shift) {
    return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is above 2^62 bytes"));
  }
  return value << shift;
}

std::string FormatBytes(uint64_t bytes) {
  static constexpr std::pair<const char*, int> kUnits[] = {
      {"TiB", 40}, {"GiB", 30}, {"MiB", 20}, {"KiB", 10}};
  for (const auto& [unit, bits] : kUnits) {
    if (bytes != 0 && bytes % (uint64_t{1} << bits) == 0) return absl::StrCat(bytes >> bits, unit);
  }
  return absl::StrCat(bytes);
}

}  // namespace cairn::daemon
