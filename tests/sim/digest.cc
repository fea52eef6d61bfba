#include "tests/sim/digest.h"

#include <map>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace cairn::engine {
namespace {

// FNV-1a with a final turn per value: small, and the same in every build.
class Hash {
 public:
  explicit Hash(uint64_t state) : state_(state) {}
  uint64_t state() const { return state_; }

  void Number(uint64_t n) {
    state_ = (state_ ^ n) * 0x9e3779b97f4a7c15ull;
    state_ ^= state_ >> 29;
  }
  void Text(absl::string_view text) {
    uint64_t h = 0xcbf29ce484222325ull;
    for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
    Number(h);
    Number(text.size());
  }

 private:
  uint64_t state_;
};

// An overload for each kind of fact, action and answer: a new kind does not compile until it is
// decided here what of it counts.
class Digester {
 public:
  Digester(Hash* values, Hash* words) : values_(*values), words_(*words) {}

  // --- facts
  void Take(const fact::DaemonLife& f) { Values("DaemonLife", f.started_unix_ms, f.next_id); }
  void Take(const fact::Job& f) { Values("Job", f.job, f.owner_uid, f.owner_gid, f.policy); }
  void Take(const fact::AttemptBegun& f) {
    Values("AttemptBegun", f.job, f.attempt, f.first_step, EncodeLineage(f.lineage), f.unix_ms);
  }
  void Take(const fact::WriterProcess& f) {
    Values("WriterProcess", f.job, f.attempt, f.world_size, f.writer, f.process, f.rank);
  }
  void Take(const fact::StepWorld& f) {
    Values("StepWorld", f.job, f.attempt, f.step, f.world_size, f.process, f.rank);
  }
  void Take(const fact::LineDecided& f) { Values("LineDecided", EncodeLineRecord(f.record)); }
  void Take(const fact::Slab& f) {
    Values("Slab", f.slab, f.bytes, f.use, f.owner_uid, f.owner_job, f.by_path, f.condemned);
  }
  void Take(const fact::SlabGone& f) { Values("SlabGone", f.slab); }
  void Take(const fact::SessionBegun& f) {
    Values("SessionBegun", f.session, f.secret, f.uid, f.gid, f.pid, f.process, f.job, f.attempt,
           f.writer, f.world_size, f.local_writers, f.takes_fds, f.run, f.restart, f.saves);
  }
  void Take(const fact::SessionEnded& f) { Values("SessionEnded", f.session); }
  void Take(const fact::Lent& f) {
    Values("Lent", f.lease, f.session, f.slab, f.mode, f.part, f.name);
  }
  void Take(const fact::Unlent& f) { Values("Unlent", f.lease); }
  void Take(const fact::ObjectCreated& f) {
    Values("ObjectCreated", f.part, f.world_size, f.name, f.kind, f.length, f.extent, f.session,
           f.call);
  }
  void Take(const fact::ObjectSealed& f) { Values("ObjectSealed", f.part, f.entry, f.extent); }
  void Take(const fact::ObjectDropped& f) { Values("ObjectDropped", f.part, f.name); }
  void Take(const fact::PartCommitted& f) {
    Values("PartCommitted", f.part, f.world_size, f.extent, f.bytes);
    for (const SlabId slab : f.slabs) Values(slab);
    Words(f.digest);
  }
  void Take(const fact::JobForgotten& f) { Values("JobForgotten", f.job); }
  void Take(const fact::PartLeftSlab& f) { Values("PartLeftSlab", f.part, f.slab); }
  void Take(const fact::PartDropped& f) { Values("PartDropped", f.part, f.name); }
  void Take(const fact::Persisted& f) {
    Values("Persisted", f.checkpoint);
    Words(f.digest);
  }
  void Take(const fact::FilesDeleted& f) { Values("FilesDeleted", f.checkpoint); }
  void Take(const fact::StepRemoved& f) {
    Values("StepRemoved", f.job, f.step, f.first_attempt, f.up_to_attempt);
  }
  void Take(const fact::PersistAsked& f) { Values("PersistAsked", f.checkpoint); }
  void Take(const fact::StepSafe& f) { Values("StepSafe", f.job, f.attempt, f.step); }
  void Take(const fact::FetchBegun& f) { Values("FetchBegun", f.slab, f.part, f.digest); }
  void Take(const fact::RingSeat& f) { Values("RingSeat", f.rank, f.incarnation, f.epoch); }
  void Take(const fact::Leaving& f) { Values("Leaving", f.on); }
  void Take(const fact::MemberLife& f) { Values("MemberLife", f.incarnation, f.superseded_by); }
  void Take(const fact::StorageRoot& f) { Values("StorageRoot", f.id, f.instance); }
  void Take(const fact::Pinned& f) { Values("Pinned", f.checkpoint, f.pinned, f.version); }

  // --- actions
  void Take(const action::Reply& a) {
    Values("Reply", a.request, a.superseded_by, a.body.status().code());
    if (a.body.ok()) {
      std::visit([this](const auto& body) { Take(body); }, *a.body);
    } else {
      Words(a.body.status().message());
    }
  }
  void Take(const action::MakeSlab& a) { Values("MakeSlab", a.slab, a.bytes, a.urgent); }
  void Take(const action::HurrySlab& a) { Values("HurrySlab", a.slab); }
  void Take(const action::DestroySlab& a) { Values("DestroySlab", a.slab); }
  void Take(const action::ProbeSlab& a) { Values("ProbeSlab", a.slab, a.leases); }
  // The manifest's content follows from PartCommitted, which has its digest.
  void Take(const action::WriteManifest& a) { Values("WriteManifest", a.part, a.extent); }
  void Take(const action::Verify& a) {
    Values("Verify", a.verification, a.part, a.entry, a.extent);
  }
  void Take(const action::Persist& a) {
    Values("Persist", a.checkpoint, a.uid, a.gid, a.parts.size());
    for (const auto& part : a.parts) {
      Values("part", part->head.Part(), part->extents.size());
      for (const ExtentRef& extent : part->extents) Values(extent);
      Words(EncodeManifest(*part));
    }
  }
  void Take(const action::Store& a) {
    Values("Store", a.part, a.uid, a.gid, a.session, a.stream);
    Words(EncodeManifest(*a.manifest));
  }
  void Take(const action::WriteLineRecord& a) {
    Values("WriteLineRecord", EncodeLineRecord(a.record), a.uid, a.gid);
  }
  void Take(const action::Reinstate& a) { Values("Reinstate", a.checkpoint, a.uid, a.gid); }
  void Take(const action::DeleteFiles& a) {
    Values("DeleteFiles", a.checkpoint, a.uid, a.gid, a.tombstone, a.this_attempt);
    if (a.stays.has_value()) Values(*a.stays);
  }
  void Take(const action::ReadTables& a) { Values("ReadTables", a.checkpoint); }
  void Take(const action::ScanJob& a) { Values("ScanJob", a.job); }
  void Take(const action::ReadLineNumbers& a) { Values("ReadLineNumbers", a.job); }
  void Take(const action::Tell& a) { Values("Tell", a.rank); }
  void Take(const action::BecomeLife& a) { Values("BecomeLife", a.self.incarnation); }
  void Take(const action::Fetch& a) { Values("Fetch", a.fetch); }
  void Take(const action::FetchFrom& a) { Values("FetchFrom", a.fetch); }
  void Take(const action::CancelFetch& a) { Values("CancelFetch", a.fetch); }
  void Take(const action::RevokeGrant& a) { Values("RevokeGrant", a.grant); }
  void Take(const action::Record& a) { Values("Record", a.job, a.checkpoints); }
  void Take(const action::WakeAt& a) { Values("WakeAt", a.at); }
  void Take(const action::EndSession& a) { Values("EndSession", a.session); }
  void Take(const action::Drained&) { Values("Drained"); }
  void Take(const action::Discard&) {}
  void Take(const action::Log& a) {
    Values("Log");
    Words(a.message);
  }

  // --- answers
  void Take(const reply::Ok&) { Values("Ok"); }
  void Take(const reply::Hello& r) { Values("Hello", r.session); }
  void Take(const reply::Attempt& r) { Values("Attempt", r.attempt); }
  void Take(const reply::Create& r) {
    Values("Create", r.retire, r.extents.size(), r.lend.size());
    for (const reply::GrantedExtent& e : r.extents) {
      Values(e.lease, e.slab, e.slab_bytes, e.offset, e.length);
    }
    for (const Lend& lend : r.lend) Values(lend);
  }
  void Take(const reply::Commit& r) {
    Values("Commit", r.complete);
    Words(r.digest);
  }
  void Take(const reply::Chunk& r) { Values("Chunk", r.extent, r.offset); }
  void Take(const reply::Standing& r) { Values("Standing", r.lend.lease, r.lend.slab); }
  void Take(const reply::Unmap& r) { Values("Unmap", r.slabs); }
  void Take(const reply::Open& r) {
    Values("Open", r.lend, r.extent, r.checkpoint, r.object, r.exact);
  }
  void Take(const reply::Granted& r) { Values("Granted", r.grant); }
  void Take(const reply::OpenStored& r) {
    Values("OpenStored", r.checkpoint.key, r.checkpoint.location.text(), r.object);
  }
  void Take(const reply::Elsewhere& r) {
    Values("Elsewhere", r.parts.size(), r.like);
    Take(r.here);
  }
  void Take(const reply::Latest& r) {
    Values("Latest", r.key, r.world_size, r.in_memory, r.in_storage);
    Words(r.digest);
  }
  void Take(const CheckpointInfo& info) { Values("CheckpointInfo", info); }
  void Take(const ObjectInfo& info) { Values("ObjectInfo", info); }
  void Take(const reply::List& r) {
    Values("List", r.jobs, r.checkpoints, r.objects, r.next_cursor);
  }
  void Take(const PolicyPreview& p) { Values("PolicyPreview", p.stay, p.go_now, p.go_later); }
  void Take(const reply::Status& r) {
    Values("Status", r.budget_bytes, r.slab_bytes, r.used_bytes, r.free_bytes, r.quarantined_bytes,
           r.writing_bytes, r.prefault_done, r.sessions.size(), r.quarantined.size(),
           r.jobs.size());
    for (const reply::SessionStatus& s : r.sessions) {
      Values(s.session, s.pid, s.uid, s.job, s.writer, s.attempt, s.leased_bytes, s.leases,
             s.client);
    }
    for (const reply::Quarantined& q : r.quarantined) {
      Values(q.slab, q.bytes, q.since, q.pids, q.job);
    }
    for (const reply::JobStatus& j : r.jobs) {
      Values(j.job, j.owner_uid, j.resident_bytes, j.latest, j.latest_persisted,
             j.unprotected_checkpoints, j.unprotected_bytes, j.policy, j.attempt,
             j.deletable_checkpoints, j.persist_problem.empty());
      Words(j.persist_problem);
    }
    for (const auto& [name, count] : r.counters) {
      Words(name);
      words_.Number(static_cast<uint64_t>(count));
    }
  }

 private:
  template <class... T>
  void Values(const T&... all) {
    (Value(all), ...);
  }
  void Words(absl::string_view text) { words_.Text(text); }

  template <class T>
  requires(std::is_arithmetic_v<T> || std::is_enum_v<T>) void Value(T n) {
    values_.Number(static_cast<uint64_t>(n));
  }
  void Value(absl::string_view text) { values_.Text(text); }
  void Value(const JobPolicy& p) { Values(p.mode, p.every, p.keep_last, p.keep_every, p.readers); }
  void Value(const CheckpointKey& k) { Values(k.job, k.step, k.attempt, k.revision); }
  void Value(const PartKey& k) { Values(k.checkpoint, k.writer); }
  void Value(const ExtentRef& e) { Values(e.slab, e.offset, e.length); }
  void Value(const ObjectEntry& e) {
    Values(e.name, e.kind, e.length, e.block_bytes, e.block_crcs);
  }
  void Value(const Lend& l) { Values(l.lease, l.slab, l.slab_bytes, l.mode); }
  void Value(const Facts& f) {
    Values(f.complete, f.resident, f.persisted, f.broken, f.in_conflict, f.abandoned, f.pinned,
           f.replicas, f.replicas_asked);
  }
  void Value(const CheckpointInfo& i) {
    Values(i.key, i.world_size, i.missing_writers, i.bytes, i.objects, i.facts, i.level,
           i.created_unix_ms, i.on_line);
    Words(i.why);
    Words(i.digest);
  }
  void Value(const ObjectInfo& i) {
    Values(i.name, i.writer, i.kind, i.length, i.level, i.block_crcs, i.verified_unix_ms, i.facts);
  }
  template <class T>
  void Value(const std::vector<T>& all) {
    Value(all.size());
    for (const T& each : all) Value(each);
  }
  void Value(const std::map<std::string, std::string>& all) {
    Value(all.size());
    for (const auto& [key, value] : all) Values(key, value);
  }

  Hash& values_;
  Hash& words_;
};

}  // namespace

void LifeDigest::Take(MonotonicNanos now, const Outcome& outcome) {
  Hash values(decisions_), words(words_);
  values.Number(static_cast<uint64_t>(now));
  Digester digester(&values, &words);
  for (const Fact& fact : outcome.facts) {
    std::visit([&](const auto& f) { digester.Take(f); }, fact);
  }
  for (const Action& action : outcome.actions) {
    std::visit([&](const auto& a) { digester.Take(a); }, action);
  }
  ++applies_;
  decisions_ = values.state();
  words_ = words.state();
}

std::string LifeDigest::Line() const {
  return absl::StrFormat("applies=%d decisions=%016x words=%016x", applies_, decisions_, words_);
}

}  // namespace cairn::engine
