// How a node begins: what the journal, the keeper and the cache hold becomes what the engine starts with.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/failpoint.h"
#include "glog/logging.h"
#include "server/cache/cache.h"
#include "server/engine/engine.h"
#include "server/node/attached.h"
#include "server/node/found_parts.h"
#include "server/node/journal_writer.h"
#include "server/node/node.h"
#include "server/node/recovery.h"
#include "server/node/storage_watch.h"
#include "server/storage/storage.h"

namespace cairn::node {
namespace {

// Of thousands a few and how many: a reader of the log that has stopped costs time for each line.
void LogSome(google::LogSeverity severity, absl::string_view what,
             const std::vector<std::string>& lines) {
  constexpr size_t kSome = 20;
  const auto log = [&](absl::string_view line) {
    LOG_AT_LEVEL(severity) << "recovery: " << what << line;
  };
  for (size_t i = 0; i < std::min(kSome, lines.size()); ++i) log(lines[i]);
  if (lines.size() > kSome) log(absl::StrCat("… and ", lines.size() - kSome, " more"));
}

}  // namespace

Status Node::Recover(Inherited inherited) {
  started_unix_ms_ = rooms_.clock->UnixMillis();
  journal::Contents contents;
  CAIRN_ASSIGN_OR_RETURN(
      std::unique_ptr<journal::Journal> journal,
      journal::Journal::Open(std::move(inherited.journal), options_.journal, &contents));
  if (contents.torn_tail) LOG(WARNING) << "journal: dropped an incomplete last frame";
  for (const auto& [kind, count] : contents.skipped) {
    LOG(WARNING) << "journal: skipped " << count << " facts of kind " << kind
                 << ", which this build does not know and may do without";
  }

  record_secret_ = journal->nonce();
  engine::Recovered recovered;
  recovered.facts = std::move(contents.facts);
  const std::vector<SlabId> unread = RecoverSlabs(&inherited.slabs, &recovered);
  if (!contents.damage.ok()) {
    RecoverFromDamage(contents, journal.get(), &inherited, &recovered);
  }
  for (SlabId slab : unread) {
    if (!read_only_) rooms_.cache->Destroy(slab, [] {});
  }
  recovered.safe_mode = safe_mode_;
  // Before anything is asked of it.
  if (const std::string id = StorageOf(recovered.facts); rooms_.storage != nullptr && !id.empty()) {
    rooms_.storage->Expect(id);
  }
  RecoverTables(&recovered);
  RecoverSelf(&recovered);
  RecoverSessions(std::move(inherited.sessions), &recovered);
  const std::string summary =
      absl::StrCat("recovered ", recovered.held_slabs.size(), " slabs, ", recovered.tables.size(),
                   " parts, ", recovered.live_sessions.size(), " sessions");
  ReachFailpoint(Failpoint::kNodeRecover);

  AfterUnlock after;
  {
    MutexLock lock(&mu_);
    journal_ = std::make_unique<JournalWriter>(std::move(journal), options_.journal.bytes,
                                               /*writable=*/!read_only_);
    engine_ = std::make_unique<engine::Engine>(options_.engine);
    engine::Outcome started =
        engine_->Start(rooms_.clock->Now(), started_unix_ms_, std::move(recovered));
    journal_->Append(started.facts, *engine_);
    StartActions(std::move(started.actions), &after);
    WriterLock alone(&query_mu_);
    query_engine_ = engine_.get();
  }
  ReachFailpoint(Failpoint::kNodeRecovered);
  timer_.Start();
  storage_watch_->Start();
  Finish(std::move(after));
  CAIRN_RETURN_IF_ERROR(sessions_.Start(std::move(inherited.fd_listener)));
  recorder_.Begin();
  if (restarts_ > 0) LOG(INFO) << summary;
  return absl::OkStatus();
}

// The facts are those before the damage: an earlier state than the memory that the keeper holds.
// It becomes the state to go on from, as a fresh snapshot, before anything acts on it. When that
// cannot be written, or must not, because another build wrote what cannot be read, this daemon only
// reads: it journals nothing, destroys nothing, and leaves alone what its facts do not know, so that
// the next daemon reads what this one read.
void Node::RecoverFromDamage(const journal::Contents& contents, journal::Journal* journal,
                             Inherited* inherited, engine::Recovered* recovered) {
  uint64_t held = 0;
  for (const HeldSlab& slab : inherited->slabs) held = std::max(held, slab.slab);
  for (const HeldSession& session : inherited->sessions) held = std::max(held, session.session);
  const size_t read = recovered->facts.size();
  size_t found = 0;
  // What another build wrote is left to it.
  if (absl::IsDataLoss(contents.damage)) {
    found = FindLostParts(contents, *inherited, recovered).size();
  }
  GoOnFromEarlierState(contents.behind, held, started_unix_ms_, &recovered->facts);
  const Status written = journal->Switch(recovered->facts);
  const std::string what = absl::StrCat(
      contents.damage.message(), "; ", read, " facts were read; what followed (at least ",
      contents.behind.size(), ") ", written.ok() ? "is lost" : "was not", "; ", found,
      " committed parts were found again");
  if (written.ok()) {
    lost_ = what;
    LOG(ERROR) << "recovery: " << what << "; every session is ended";
  } else {
    read_only_ = true;
    safe_mode_ = absl::StrCat(what, "; the journal stays as it is: ", written.message(),
                              safe_mode_.empty() ? "" : absl::StrCat("; ", safe_mode_));
    LOG(ERROR) << "recovery: " << safe_mode_;
  }
  // What they were lent since is not known (GoOnFromEarlierState).
  for (HeldSession& session : inherited->sessions) sessions_.Discard(std::move(session));
  inherited->sessions.clear();
}

// Committed parts whose facts lay behind the damage join the facts. Returns which.
std::vector<PartKey> Node::FindLostParts(const journal::Contents& contents,
                                         const Inherited& inherited, engine::Recovered* recovered) {
  const std::map<SlabId, uint64_t> readable(recovered->held_slabs.begin(),
                                            recovered->held_slabs.end());
  HeldMemory memory;
  for (const HeldSlab& slab : inherited.slabs) {
    if (readable.contains(slab.slab)) memory.slabs[slab.slab] = {slab.bytes, slab.use};
  }
  memory.read = [this](const ExtentRef& extent, uint64_t bytes) {
    return ReadExtent(extent, bytes);
  };
  memory.crcs = [this](const ExtentRef& extent, uint64_t length, uint32_t block_bytes) {
    return rooms_.cache->Crcs(extent, length, block_bytes);
  };
  JoinLosses(contents.behind, &recovered->facts);
  std::vector<std::string> problems;
  std::vector<std::string> of_known;  // RecoverTables tells them
  Status unknown;
  const auto tables = TablesOf(recovered->facts, memory.read, &of_known, &unknown);
  const std::vector<PartKey> found =
      JoinFoundParts(FindParts(memory, record_secret_, &problems), contents.behind, memory, tables,
                     &recovered->facts, &problems);
  std::vector<std::string> keys;
  for (const PartKey& part : found) keys.push_back(part.DebugString());
  LogSome(google::GLOG_INFO, "found again: ", keys);
  LogSome(google::GLOG_INFO, "left alone: ", problems);
  return found;
}

std::vector<SlabId> Node::RecoverSlabs(std::vector<HeldSlab>* slabs, engine::Recovered* recovered) {
  std::vector<SlabId> unread;
  for (HeldSlab& held : *slabs) {
    const Status adopted = rooms_.cache->Adopt(held.slab, held.bytes, std::move(held.fd));
    if (!adopted.ok()) {
      // The objects in this slab are lost; those in the others need not be.
      LOG(ERROR) << "recovery: " << adopted;
      unread.push_back(held.slab);
      continue;
    }
    recovered->held_slabs.emplace_back(held.slab, held.bytes);
    if (attached_ != nullptr) attached_->Prepare(held.slab);
  }
  return unread;
}

StatusOr<std::string> Node::ReadExtent(const ExtentRef& extent, uint64_t bytes) const {
  if (bytes > extent.length || extent.length > 2 * uint64_t{kMaxManifestBytes}) {
    return absl::DataLossError("it is longer than its place");
  }
  std::string buffer(extent.length, '\0');
  CAIRN_RETURN_IF_ERROR(rooms_.cache->Read(extent.slab, extent.offset, absl::MakeSpan(buffer)));
  return buffer;
}

void Node::RecoverTables(engine::Recovered* recovered) {
  const auto read = [this](const ExtentRef& extent, uint64_t bytes) {
    return ReadExtent(extent, bytes);
  };
  std::vector<std::string> problems;
  Status unknown;
  recovered->tables = TablesOf(recovered->facts, read, &problems, &unknown);
  LogSome(google::GLOG_ERROR, "", problems);
  if (unknown.ok()) return;
  // Another build's, as after a rollback: the parts are not known here, and must not be destroyed.
  read_only_ = true;
  safe_mode_ = absl::StrCat(unknown.message(), safe_mode_.empty() ? "" : "; ", safe_mode_);
  recovered->safe_mode = safe_mode_;
}

void Node::RecoverSessions(std::vector<HeldSession> sessions, engine::Recovered* recovered) {
  absl::flat_hash_map<SessionId, SessionInfo> begun = SessionsOf(recovered->facts);
  for (HeldSession& held : sessions) {
    const SessionId id = held.session;
    const auto it = begun.find(id);
    if (it == begun.end() || !PidfdAlive(held.pidfd.get())) {
      sessions_.Discard(std::move(held));
      continue;
    }
    const Status adopted = sessions_.Adopt(it->second, &held);
    if (!adopted.ok()) {
      LOG(ERROR) << "recovery: session " << id << ": " << adopted;
      sessions_.Discard(std::move(held));
      continue;
    }
    recovered->live_sessions.push_back(id);
  }
}

}  // namespace cairn::node
