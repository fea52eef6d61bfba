// One file: each kind of message is read and written side by side, and all share the same few checks.
#include "server/rpc/peer_convert.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "common/codec.h"
#include "common/keys.h"
#include "common/lineage.h"
#include "common/manifest.h"
#include "common/session_identity.h"
#include "common/tcp_address.h"
#include "proto/convert.h"

namespace cairn::rpc {
namespace {

using engine::CheckpointId;
using engine::PartId;
namespace peer = engine::peer;

// --- what lists and texts may hold

// Of lists that have an entry for each part, writer or checkpoint of a job, or of all jobs of a member. A frame of
// 64 MiB holds fewer; what a frame's lists take in memory is bounded where it is read.
constexpr size_t kMostEntries = size_t{1} << 22;
constexpr size_t kMostGivenUp = 128;
constexpr size_t kMostWordsBytes = 64 << 10;  // of a text for people
constexpr size_t kMostDescriptorBytes = 4096;
constexpr size_t kTokenBytes = 16;

Status Refuse(absl::string_view field, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", why));
}

StatusOr<uint64_t> Unsigned(absl::string_view field, int64_t value) {
  if (value < 0) return Refuse(field, absl::StrCat(value, " is below 0"));
  return static_cast<uint64_t>(value);
}

Status CheckWords(absl::string_view field, const std::string& words) {
  if (words.size() <= kMostWordsBytes) return absl::OkStatus();
  return Refuse(field, absl::StrCat(words.size(), " bytes, at most ", kMostWordsBytes));
}

Status CheckDigest(absl::string_view field, const std::string& digest) {
  const auto hexadecimal = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  if (digest.size() == kDigestLength && std::all_of(digest.begin(), digest.end(), hexadecimal)) {
    return absl::OkStatus();
  }
  return Refuse(field, absl::StrCat("not ", kDigestLength, " hexadecimal digits"));
}

Status CheckRank(absl::string_view field, int32_t rank) {
  if (rank >= 0) return absl::OkStatus();
  return Refuse(field, absl::StrCat(rank, " is below 0"));
}

Status CheckRevision(absl::string_view field, int32_t revision) {
  if (revision >= 0) return absl::OkStatus();
  return Refuse(field, absl::StrCat(revision, " is below 0"));
}

Status CheckWriter(absl::string_view field, int32_t writer) {
  if (writer >= 0 && writer < kMaxWorldSize) return absl::OkStatus();
  return Refuse(field, absl::StrCat(writer, " is not in 0 … ", kMaxWorldSize - 1));
}

// What arrived for an enumeration, which may be none of its values: reading those as the enumeration would
// be undefined. `Last` is the greatest; they begin at 0 and have no gap.
template <auto Last, typename Wire>
StatusOr<decltype(Last)> Enumerator(absl::string_view field, const Wire& wire) {
  int number = 0;
  static_assert(sizeof(wire) == sizeof(number));
  std::memcpy(&number, &wire, sizeof(number));
  if (number < 0 || number > static_cast<int>(Last)) {
    return Refuse(field, absl::StrCat(number, " is not known"));
  }
  return static_cast<decltype(Last)>(number);
}

template <typename A, typename B>
constexpr bool Same(A a, B b) {
  return static_cast<int>(a) == static_cast<int>(b);
}
static_assert(Same(peer::HaveState::kUnderWay, peerwire::HaveState::UNDER_WAY));
static_assert(Same(peer::HaveState::kHeld, peerwire::HaveState::HELD));
static_assert(Same(peer::HaveState::kRefused, peerwire::HaveState::REFUSED));
static_assert(Same(peer::HaveState::kNoRoom, peerwire::HaveState::NO_ROOM));
static_assert(Same(peer::Fate::kKeep, peerwire::Fate::KEEP));
static_assert(Same(peer::Fate::kRemoved, peerwire::Fate::REMOVED));
static_assert(Same(peer::Fate::kAbandoned, peerwire::Fate::ABANDONED));
static_assert(Same(peer::Fate::kSuperseded, peerwire::Fate::SUPERSEDED));
static_assert(Same(peer::Fate::kSurplus, peerwire::Fate::SURPLUS));
static_assert(Same(peer::Fate::kGivenUp, peerwire::Fate::GIVEN_UP));
static_assert(Same(PartRole::kOwn, peerwire::PartRole::OWN));
static_assert(Same(PartRole::kReplica, peerwire::PartRole::REPLICA));
static_assert(Same(PartRole::kFetched, peerwire::PartRole::FETCHED));

int64_t Signed(uint64_t value) { return static_cast<int64_t>(value); }
int32_t Signed(uint32_t value) { return static_cast<int32_t>(value); }

// Calls `each` for every entry; an error says which entry it is about.
template <typename List, typename F>
Status ForEach(absl::string_view field, List& list, size_t most, F each) {
  if (list.size() > most) {
    return Refuse(field, absl::StrCat(list.size(), " entries, at most ", most));
  }
  for (size_t i = 0; i < list.size(); ++i) {
    const Status status = each(list[i]);
    if (!status.ok()) return Annotate(status, absl::StrCat(field, "[", i, "]"));
  }
  return absl::OkStatus();
}

Status Twice() { return absl::InvalidArgumentError("stands there twice"); }

// --- keys

peerwire::Checkpoint ToWire(const CheckpointId& id) {
  peerwire::Checkpoint out;
  out.__set_step(id.step);
  out.__set_attempt(id.attempt);
  out.__set_revision(id.revision);
  return out;
}

StatusOr<CheckpointId> FromWire(const peerwire::Checkpoint& id) {
  CAIRN_RETURN_IF_ERROR(ValidateStep(id.step));
  CAIRN_RETURN_IF_ERROR(ValidateAttempt(id.attempt));
  CAIRN_RETURN_IF_ERROR(CheckRevision("revision", id.revision));
  return CheckpointId{id.step, id.attempt, id.revision};
}

peerwire::Part ToWire(const PartId& id) {
  peerwire::Part out;
  out.__set_step(id.first.step);
  out.__set_attempt(id.first.attempt);
  out.__set_revision(id.first.revision);
  out.__set_writer(id.second);
  return out;
}

StatusOr<PartId> FromWire(const peerwire::Part& id) {
  peerwire::Checkpoint checkpoint;
  checkpoint.step = id.step;
  checkpoint.attempt = id.attempt;
  checkpoint.revision = id.revision;
  CAIRN_ASSIGN_OR_RETURN(CheckpointId of, FromWire(checkpoint));
  CAIRN_RETURN_IF_ERROR(CheckWriter("writer", id.writer));
  return PartId{of, id.writer};
}

peerwire::Part ToWire(const PartKey& part) {
  const CheckpointKey& key = part.checkpoint;
  return ToWire(PartId{{key.step, key.attempt, key.revision}, part.writer});
}

StatusOr<PartKey> PartOf(const std::string& job, const peerwire::Part& id) {
  CAIRN_RETURN_IF_ERROR(ValidateJob(job));
  CAIRN_ASSIGN_OR_RETURN(const PartId part, FromWire(id));
  const CheckpointId& of = part.first;
  return PartKey{CheckpointKey{job, of.step, of.attempt, of.revision}, part.second};
}

template <typename Set>
std::vector<peerwire::Checkpoint> ToWire(const Set& checkpoints) {
  std::vector<peerwire::Checkpoint> out;
  out.reserve(checkpoints.size());
  for (const CheckpointId& id : checkpoints) out.push_back(ToWire(id));
  return out;
}

StatusOr<std::set<CheckpointId>> SetFrom(absl::string_view field,
                                         const std::vector<peerwire::Checkpoint>& list) {
  std::set<CheckpointId> out;
  CAIRN_RETURN_IF_ERROR(ForEach(field, list, kMostEntries, [&](const auto& entry) -> Status {
    CAIRN_ASSIGN_OR_RETURN(const CheckpointId id, FromWire(entry));
    return out.insert(id).second ? absl::OkStatus() : Twice();
  }));
  return out;
}

StatusOr<std::optional<CheckpointId>> OptionalFrom(absl::string_view field, bool is_set,
                                                   const peerwire::Checkpoint& id) {
  if (!is_set) return std::optional<CheckpointId>();
  StatusOr<CheckpointId> out = FromWire(id);
  if (!out.ok()) return Annotate(out.status(), field);
  return std::optional<CheckpointId>(*out);
}

// --- between an owner and its backup

peerwire::WantList ToWire(const peer::WantList& list) {
  peerwire::WantList out;
  out.__set_version(Signed(list.version));
  out.__set_epoch(list.epoch);
  out.__isset.wants = true;
  out.wants.reserve(list.wants.size());
  for (const peer::Want& want : list.wants) {
    peerwire::Want& entry = out.wants.emplace_back();
    entry.__set_job(want.part.checkpoint.job);
    entry.__set_part(ToWire(want.part));
    entry.__set_digest(want.digest);
    entry.__set_manifest_bytes(Signed(want.manifest_bytes));
    entry.__set_bytes(Signed(want.bytes));
    entry.__set_world_size(want.world_size);
    entry.__set_owner_uid(Signed(want.owner_uid));
    entry.__set_owner_gid(Signed(want.owner_gid));
    entry.__set_owner(want.owner);
    entry.__set_target(want.target);
  }
  return out;
}

StatusOr<peer::Want> FromWire(const peerwire::Want& want) {
  peer::Want out;
  CAIRN_ASSIGN_OR_RETURN(out.part, PartOf(want.job, want.part));
  CAIRN_RETURN_IF_ERROR(CheckDigest("digest", want.digest));
  out.digest = want.digest;
  CAIRN_ASSIGN_OR_RETURN(out.manifest_bytes, Unsigned("manifest_bytes", want.manifest_bytes));
  if (out.manifest_bytes > kMaxManifestBytes) {
    return Refuse("manifest_bytes",
                  absl::StrCat(out.manifest_bytes, ", at most ", kMaxManifestBytes));
  }
  CAIRN_ASSIGN_OR_RETURN(out.bytes, Unsigned("bytes", want.bytes));
  CAIRN_RETURN_IF_ERROR(ValidateWorld(out.part.writer, want.world_size));
  out.world_size = want.world_size;
  out.owner_uid = static_cast<uint32_t>(want.owner_uid);
  out.owner_gid = static_cast<uint32_t>(want.owner_gid);
  if (want.owner != engine::kNoRank) {
    CAIRN_RETURN_IF_ERROR(CheckRank("owner", want.owner));
  }
  out.owner = want.owner;
  out.target = want.target;
  return out;
}

StatusOr<peer::Message> FromWire(const peerwire::WantList& list) {
  peer::WantList out;
  CAIRN_ASSIGN_OR_RETURN(out.version, Unsigned("version", list.version));
  if (list.epoch < 0) return Refuse("epoch", absl::StrCat(list.epoch, " is below 0"));
  out.epoch = list.epoch;
  CAIRN_RETURN_IF_ERROR(
      ForEach("wants", list.wants, kMostEntries, [&](const auto& entry) -> Status {
        CAIRN_ASSIGN_OR_RETURN(peer::Want want, FromWire(entry));
        out.wants.push_back(std::move(want));
        return absl::OkStatus();
      }));
  return peer::Message(std::move(out));
}

peerwire::HaveList ToWire(const peer::HaveList& list) {
  peerwire::HaveList out;
  out.__set_wants_version(Signed(list.wants_version));
  out.__set_version(Signed(list.version));
  out.__isset.haves = true;
  out.haves.reserve(list.haves.size());
  for (const peer::Have& have : list.haves) {
    peerwire::Have& entry = out.haves.emplace_back();
    entry.__set_job(have.part.checkpoint.job);
    entry.__set_part(ToWire(have.part));
    entry.__set_digest(have.digest);
    entry.__set_state(static_cast<peerwire::HaveState::type>(have.state));
    entry.__set_why(have.why);
    entry.__set_done_bytes(Signed(have.done_bytes));
  }
  return out;
}

StatusOr<peer::Have> FromWire(const peerwire::Have& have) {
  peer::Have out;
  CAIRN_ASSIGN_OR_RETURN(out.part, PartOf(have.job, have.part));
  CAIRN_RETURN_IF_ERROR(CheckDigest("digest", have.digest));
  out.digest = have.digest;
  CAIRN_ASSIGN_OR_RETURN(out.state, Enumerator<peer::HaveState::kNoRoom>("state", have.state));
  CAIRN_RETURN_IF_ERROR(CheckWords("why", have.why));
  out.why = have.why;
  CAIRN_ASSIGN_OR_RETURN(out.done_bytes, Unsigned("done_bytes", have.done_bytes));
  return out;
}

StatusOr<peer::Message> FromWire(const peerwire::HaveList& list) {
  peer::HaveList out;
  CAIRN_ASSIGN_OR_RETURN(out.wants_version, Unsigned("wants_version", list.wants_version));
  CAIRN_ASSIGN_OR_RETURN(out.version, Unsigned("version", list.version));
  CAIRN_RETURN_IF_ERROR(
      ForEach("haves", list.haves, kMostEntries, [&](const auto& entry) -> Status {
        CAIRN_ASSIGN_OR_RETURN(peer::Have have, FromWire(entry));
        out.haves.push_back(std::move(have));
        return absl::OkStatus();
      }));
  return peer::Message(std::move(out));
}

peerwire::ReleaseList ToWire(const peer::ReleaseList& list) {
  peerwire::ReleaseList out;
  out.__set_haves_version(Signed(list.haves_version));
  out.__isset.releases = true;
  out.releases.reserve(list.releases.size());
  for (const peer::Release& release : list.releases) {
    peerwire::Release& entry = out.releases.emplace_back();
    entry.__set_job(release.part.checkpoint.job);
    entry.__set_part(ToWire(release.part));
    entry.__set_digest(release.digest);
    entry.__set_fate(static_cast<peerwire::Fate::type>(release.fate));
    if (release.fate == peer::Fate::kSuperseded) {
      entry.__set_by(
          ToWire(CheckpointId{release.by.step, release.by.attempt, release.by.revision}));
    }
  }
  return out;
}

StatusOr<peer::Release> FromWire(const peerwire::Release& release) {
  peer::Release out;
  CAIRN_ASSIGN_OR_RETURN(out.part, PartOf(release.job, release.part));
  CAIRN_RETURN_IF_ERROR(CheckDigest("digest", release.digest));
  out.digest = release.digest;
  CAIRN_ASSIGN_OR_RETURN(out.fate, Enumerator<peer::Fate::kGivenUp>("fate", release.fate));
  if (release.__isset.by != (out.fate == peer::Fate::kSuperseded)) {
    return Refuse("by", release.__isset.by ? "is said, but the part is not superseded"
                                           : "is missing: the part is superseded");
  }
  if (!release.__isset.by) return out;
  const StatusOr<CheckpointId> by = FromWire(release.by);
  if (!by.ok()) return Annotate(by.status(), "by");
  out.by = {release.job, by->step, by->attempt, by->revision};
  return out;
}

StatusOr<peer::Message> FromWire(const peerwire::ReleaseList& list) {
  peer::ReleaseList out;
  CAIRN_ASSIGN_OR_RETURN(out.haves_version, Unsigned("haves_version", list.haves_version));
  CAIRN_RETURN_IF_ERROR(
      ForEach("releases", list.releases, kMostEntries, [&](const auto& entry) -> Status {
        CAIRN_ASSIGN_OR_RETURN(peer::Release release, FromWire(entry));
        out.releases.push_back(std::move(release));
        return absl::OkStatus();
      }));
  return peer::Message(std::move(out));
}

// --- reports

std::string EncodeNames(const std::vector<uint64_t>& names) {
  std::string out;
  out.reserve(names.size() * sizeof(uint64_t));
  for (const uint64_t name : names) AppendInteger(&out, name);
  return out;
}

StatusOr<engine::NameHashes> NamesFrom(const std::string& bytes) {
  if (bytes.size() % sizeof(uint64_t) != 0) {
    return Refuse("names", absl::StrCat(bytes.size(), " bytes are not a multiple of 8"));
  }
  auto names = std::make_shared<std::vector<uint64_t>>(bytes.size() / sizeof(uint64_t));
  Cursor cursor(bytes);
  for (uint64_t& name : *names) cursor.Take(&name);
  if (!std::is_sorted(names->begin(), names->end())) return Refuse("names", "do not ascend");
  return engine::NameHashes(std::move(names));
}

peerwire::ReportedAttempt ToWire(Attempt attempt, const engine::AttemptReport& report) {
  peerwire::ReportedAttempt out;
  out.__set_attempt(attempt);
  out.__set_first(report.first);
  out.__set_lineage(EncodeLineage(report.lineage));
  out.__set_unix_ms(report.unix_ms);
  return out;
}

StatusOr<engine::AttemptReport> FromWire(const peerwire::ReportedAttempt& attempt) {
  CAIRN_RETURN_IF_ERROR(ValidateAttempt(attempt.attempt));
  engine::AttemptReport out;
  if (attempt.first != kNoStep)
    CAIRN_RETURN_IF_ERROR(Annotate(ValidateStep(attempt.first), "first"));
  out.first = attempt.first;
  StatusOr<Lineage> lineage = DecodeLineage(attempt.lineage);
  if (!lineage.ok()) return absl::InvalidArgumentError(lineage.status().message());
  out.lineage = *std::move(lineage);
  out.unix_ms = attempt.unix_ms;
  return out;
}

peerwire::ReportedPart ToWire(const PartId& id, const engine::PartReport& report) {
  peerwire::ReportedPart out;
  out.__set_part(ToWire(id));
  out.__set_world_size(report.world_size);
  out.__set_digest(report.digest);
  out.__set_role(static_cast<peerwire::PartRole::type>(report.role));
  out.__set_owner(report.owner);
  out.__set_bytes(Signed(report.bytes));
  out.__set_in_memory(report.in_memory);
  out.__set_stored(report.stored);
  if (report.names != nullptr) out.__set_names(EncodeNames(*report.names));
  return out;
}

StatusOr<engine::PartReport> FromWire(const PartId& id, const peerwire::ReportedPart& part) {
  engine::PartReport out;
  CAIRN_RETURN_IF_ERROR(ValidateWorld(id.second, part.world_size));
  out.world_size = part.world_size;
  CAIRN_RETURN_IF_ERROR(CheckDigest("digest", part.digest));
  out.digest = part.digest;
  CAIRN_ASSIGN_OR_RETURN(out.role, Enumerator<PartRole::kFetched>("role", part.role));
  if (part.owner != engine::kNoRank) CAIRN_RETURN_IF_ERROR(CheckRank("owner", part.owner));
  out.owner = part.owner;
  CAIRN_ASSIGN_OR_RETURN(out.bytes, Unsigned("bytes", part.bytes));
  out.in_memory = part.in_memory;
  out.stored = part.stored;
  if (part.__isset.names) {
    CAIRN_ASSIGN_OR_RETURN(out.names, NamesFrom(part.names));
  }
  return out;
}

// Of a WriterId or a ReportedWriter.
template <typename Wire>
StatusOr<engine::WriterKey> WriterFrom(const Wire& wire) {
  CAIRN_RETURN_IF_ERROR(ValidateAttempt(wire.attempt));
  // A member that was started anew with a journal of an earlier version does not know the world size.
  CAIRN_RETURN_IF_ERROR(wire.world_size == 0 ? CheckWriter("writer", wire.writer)
                                             : ValidateWorld(wire.writer, wire.world_size));
  return engine::WriterKey{wire.attempt, {wire.world_size, wire.writer}};
}

template <typename Wire>
void SetWriter(const engine::WriterKey& id, Wire* wire) {
  wire->__set_attempt(id.first);
  wire->__set_writer(id.second.writer);
  wire->__set_world_size(id.second.world_size);
}

peerwire::ReportedWriter ToWire(const engine::WriterKey& id, const engine::WriterReport& report) {
  peerwire::ReportedWriter out;
  SetWriter(id, &out);
  out.__set_reached_step(report.reached.first);
  out.__set_reached_revision(report.reached.second);
  out.__set_alive(report.alive);
  out.__isset.given_up = true;
  for (const auto& [step, revision] : report.given_up) {
    out.given_up.push_back(step);
    out.given_up.push_back(revision);
  }
  return out;
}

StatusOr<engine::WriterReport> FromWire(const peerwire::ReportedWriter& writer) {
  engine::WriterReport out;
  if (writer.reached_step != kNoStep) {
    CAIRN_RETURN_IF_ERROR(Annotate(ValidateStep(writer.reached_step), "reached_step"));
  }
  CAIRN_RETURN_IF_ERROR(CheckRevision("reached_revision", writer.reached_revision));
  out.reached = {writer.reached_step, writer.reached_revision};
  out.alive = writer.alive;
  const std::vector<int64_t>& given_up = writer.given_up;
  if (given_up.size() % 2 != 0 || given_up.size() / 2 > kMostGivenUp) {
    return Refuse("given_up", absl::StrCat(given_up.size(), " numbers are not at most ",
                                           kMostGivenUp, " pairs"));
  }
  for (size_t i = 0; i < given_up.size(); i += 2) {
    CAIRN_RETURN_IF_ERROR(Annotate(ValidateStep(given_up[i]), "given_up"));
    if (given_up[i + 1] < 0 || given_up[i + 1] > std::numeric_limits<Revision>::max()) {
      return Refuse("given_up", absl::StrCat(given_up[i + 1], " is not a revision"));
    }
    out.given_up.emplace(given_up[i], static_cast<Revision>(given_up[i + 1]));
  }
  return out;
}

std::vector<peerwire::SavingProcesses> ToWire(const std::vector<engine::SavingReport>& saving) {
  std::vector<peerwire::SavingProcesses> out;
  for (const engine::SavingReport& report : saving) {
    peerwire::SavingProcesses& of = out.emplace_back();
    of.__set_attempt(report.attempt);
    of.__set_run(report.run);
    of.__set_restart(report.restart);
    of.__set_pids({report.pids.begin(), report.pids.end()});
  }
  return out;
}

Status SavingFrom(const std::vector<peerwire::SavingProcesses>& saving,
                  std::vector<engine::SavingReport>* out) {
  return ForEach("saving", saving, engine::kMostSavingTold, [&](const auto& entry) -> Status {
    CAIRN_RETURN_IF_ERROR(ValidateAttempt(entry.attempt));
    if (entry.run.size() > kMaxRunBytes) {
      return Refuse("run", absl::StrCat(entry.run.size(), " bytes exceed ", kMaxRunBytes));
    }
    engine::SavingReport& report = out->emplace_back();
    report.attempt = entry.attempt;
    report.run = entry.run;
    report.restart = entry.restart;
    return ForEach("pids", entry.pids, engine::kMostPidsTold, [&](int32_t pid) -> Status {
      return report.pids.insert(pid).second ? absl::OkStatus() : Twice();
    });
  });
}

peerwire::Report ToWire(const peer::Report& report) {
  const engine::ReportDelta& delta = report.delta;
  peerwire::Report out;
  out.__set_job(delta.job);
  out.__set_after(Signed(delta.after));
  out.__set_number(Signed(delta.number));
  out.__set_owned(delta.owned);
  out.__set_owner_uid(Signed(delta.owner_uid));
  out.__set_owner_gid(Signed(delta.owner_gid));
  out.__set_policy(cairn::ToWire(delta.policy));
  for (const auto& [attempt, of] : delta.attempts) out.attempts.push_back(ToWire(attempt, of));
  out.attempts_gone.assign(delta.attempts_gone.begin(), delta.attempts_gone.end());
  out.parts.reserve(delta.parts.size());
  for (const auto& [id, of] : delta.parts) out.parts.push_back(ToWire(id, of));
  for (const PartId& id : delta.parts_gone) out.parts_gone.push_back(ToWire(id));
  for (const auto& [id, of] : delta.writers) out.writers.push_back(ToWire(id, of));
  for (const engine::WriterKey& id : delta.writers_gone) {
    SetWriter(id, &out.writers_gone.emplace_back());
  }
  out.__set_published(ToWire(delta.published));
  out.__set_published_gone(ToWire(delta.published_gone));
  if (delta.target.has_value()) out.__set_target(ToWire(*delta.target));
  out.__set_saving(ToWire(delta.saving));
  out.__set_answers(Signed(delta.answers));
  return out;
}

// What is new or changed, and what is gone. Nothing is both.
Status AttemptsFrom(const peerwire::Report& report, engine::ReportDelta* delta) {
  CAIRN_RETURN_IF_ERROR(
      ForEach("attempts", report.attempts, kMostEntries, [&](const auto& entry) -> Status {
        CAIRN_ASSIGN_OR_RETURN(engine::AttemptReport of, FromWire(entry));
        return delta->attempts.emplace(entry.attempt, std::move(of)).second ? absl::OkStatus()
                                                                            : Twice();
      }));
  return ForEach("attempts_gone", report.attempts_gone, kMostEntries, [&](Attempt gone) -> Status {
    CAIRN_RETURN_IF_ERROR(ValidateAttempt(gone));
    const bool known = delta->attempts.count(gone) > 0;
    return !known && delta->attempts_gone.insert(gone).second ? absl::OkStatus() : Twice();
  });
}

Status PartsFrom(const peerwire::Report& report, engine::ReportDelta* delta) {
  CAIRN_RETURN_IF_ERROR(
      ForEach("parts", report.parts, kMostEntries, [&](const auto& entry) -> Status {
        CAIRN_ASSIGN_OR_RETURN(const PartId id, FromWire(entry.part));
        CAIRN_ASSIGN_OR_RETURN(engine::PartReport of, FromWire(id, entry));
        return delta->parts.emplace(id, std::move(of)).second ? absl::OkStatus() : Twice();
      }));
  return ForEach("parts_gone", report.parts_gone, kMostEntries, [&](const auto& gone) -> Status {
    CAIRN_ASSIGN_OR_RETURN(const PartId id, FromWire(gone));
    const bool known = delta->parts.count(id) > 0;
    return !known && delta->parts_gone.insert(id).second ? absl::OkStatus() : Twice();
  });
}

Status WritersFrom(const peerwire::Report& report, engine::ReportDelta* delta) {
  const Status known =
      ForEach("writers", report.writers, kMostEntries, [&](const auto& entry) -> Status {
        CAIRN_ASSIGN_OR_RETURN(const engine::WriterKey id, WriterFrom(entry));
        CAIRN_ASSIGN_OR_RETURN(engine::WriterReport of, FromWire(entry));
        return delta->writers.emplace(id, std::move(of)).second ? absl::OkStatus() : Twice();
      });
  CAIRN_RETURN_IF_ERROR(known);
  return ForEach(
      "writers_gone", report.writers_gone, kMostEntries, [&](const auto& gone) -> Status {
        CAIRN_ASSIGN_OR_RETURN(const engine::WriterKey id, WriterFrom(gone));
        const bool there = delta->writers.count(id) > 0;
        return !there && delta->writers_gone.insert(id).second ? absl::OkStatus() : Twice();
      });
}

StatusOr<peer::Message> FromWire(const peerwire::Report& report) {
  peer::Report out;
  engine::ReportDelta& delta = out.delta;
  CAIRN_RETURN_IF_ERROR(ValidateJob(report.job));
  delta.job = report.job;
  CAIRN_ASSIGN_OR_RETURN(delta.after, Unsigned("after", report.after));
  CAIRN_ASSIGN_OR_RETURN(delta.number, Unsigned("number", report.number));
  if (delta.number <= delta.after) {
    return Refuse("number", absl::StrCat(delta.number, " is not above after, ", delta.after));
  }
  delta.owned = report.owned;
  delta.owner_uid = static_cast<uint32_t>(report.owner_uid);
  delta.owner_gid = static_cast<uint32_t>(report.owner_gid);
  CAIRN_ASSIGN_OR_RETURN(delta.policy, cairn::FromWire(report.policy));
  CAIRN_RETURN_IF_ERROR(AttemptsFrom(report, &delta));
  CAIRN_RETURN_IF_ERROR(PartsFrom(report, &delta));
  CAIRN_RETURN_IF_ERROR(WritersFrom(report, &delta));
  CAIRN_ASSIGN_OR_RETURN(delta.published, SetFrom("published", report.published));
  CAIRN_ASSIGN_OR_RETURN(delta.published_gone, SetFrom("published_gone", report.published_gone));
  for (const CheckpointId& gone : delta.published_gone) {
    if (delta.published.count(gone) > 0) return Annotate(Twice(), "published_gone");
  }
  CAIRN_ASSIGN_OR_RETURN(delta.target,
                         OptionalFrom("target", report.__isset.target, report.target));
  CAIRN_RETURN_IF_ERROR(SavingFrom(report.saving, &delta.saving));
  CAIRN_ASSIGN_OR_RETURN(delta.answers, Unsigned("answers", report.answers));
  return peer::Message(std::move(out));
}

// --- verdicts

peerwire::CheckpointVerdict ToWire(const CheckpointId& id,
                                   const engine::CheckpointVerdict& verdict) {
  peerwire::CheckpointVerdict out;
  out.__set_checkpoint(ToWire(id));
  out.__set_world_size(verdict.world_size);
  out.__set_complete(verdict.complete);
  out.__set_digest(verdict.digest);
  out.__set_bytes(verdict.bytes);
  out.__set_in_memory(verdict.in_memory);
  out.__set_stored(verdict.stored);
  out.__set_replicas(verdict.replicas);
  out.__set_hopeless(verdict.hopeless);
  out.__set_conflict(verdict.conflict);
  return out;
}

StatusOr<engine::CheckpointVerdict> FromWire(const peerwire::CheckpointVerdict& verdict) {
  engine::CheckpointVerdict out;
  if (verdict.world_size < 0 || verdict.world_size > kMaxWorldSize) {
    return Refuse("world_size", absl::StrCat(verdict.world_size, " is not in 0 … ", kMaxWorldSize));
  }
  out.world_size = verdict.world_size;
  out.complete = verdict.complete;
  if (!verdict.digest.empty()) CAIRN_RETURN_IF_ERROR(CheckDigest("digest", verdict.digest));
  out.digest = verdict.digest;
  CAIRN_RETURN_IF_ERROR(Unsigned("bytes", verdict.bytes).status());
  out.bytes = verdict.bytes;
  out.in_memory = verdict.in_memory;
  out.stored = verdict.stored;
  // Of a part that nobody has the copies are none: one less is −1.
  if (verdict.replicas < -1 || verdict.replicas > kMostReplicas) {
    return Refuse("replicas", absl::StrCat(verdict.replicas, " is not in -1 … ", kMostReplicas));
  }
  out.replicas = verdict.replicas;
  out.hopeless = verdict.hopeless;
  CAIRN_RETURN_IF_ERROR(CheckWords("conflict", verdict.conflict));
  out.conflict = verdict.conflict;
  return out;
}

peerwire::Verdict ToWire(const peer::VerdictSaid& said) {
  const engine::JobVerdict& verdict = *said.verdict;
  peerwire::Verdict out;
  out.__set_job(verdict.job);
  for (const auto& [rank, report] : verdict.reports) {
    peerwire::RestsOn& rests = out.reports.emplace_back();
    rests.__set_number(Signed(report.second));
    rests.__set_member(ToPeerWire(report.first));
  }
  out.silent.assign(verdict.silent.begin(), verdict.silent.end());
  out.__set_conclusive(verdict.final);
  out.__set_head(verdict.head.number);
  out.__set_head_decided(verdict.head.decided);
  out.checkpoints.reserve(verdict.checkpoints.size());
  for (const auto& [id, of] : verdict.checkpoints) out.checkpoints.push_back(ToWire(id, of));
  if (verdict.latest.has_value()) out.__set_latest(ToWire(*verdict.latest));
  if (verdict.protect.has_value()) out.__set_protect(ToWire(*verdict.protect));
  if (verdict.target.has_value()) out.__set_target(ToWire(*verdict.target));
  out.__set_asked(verdict.asked);
  out.__set_why(verdict.why);
  out.__set_owned(verdict.owned);
  out.__set_owner_uid(Signed(verdict.owner_uid));
  out.__set_owner_gid(Signed(verdict.owner_gid));
  out.__set_policy(cairn::ToWire(verdict.policy));
  for (const auto& [attempt, of] : verdict.attempts) out.attempts.push_back(ToWire(attempt, of));
  out.__set_answers(Signed(said.answers));
  out.__set_safe_attempt(verdict.safe.first);
  out.__set_safe_step(verdict.safe.second);
  for (const auto& [rank, saving] : verdict.saving) {
    peerwire::SavingMember& of = out.saving.emplace_back();
    of.__set_rank(rank);
    of.__set_saving(ToWire(saving));
  }
  return out;
}

Status ReportsFrom(const peerwire::Verdict& verdict, engine::JobVerdict* out) {
  CAIRN_RETURN_IF_ERROR(ForEach(
      "reports", verdict.reports, engine::kMaxCatalogMembers, [&](const auto& entry) -> Status {
        CAIRN_ASSIGN_OR_RETURN(engine::MemberId member, FromPeerWire(entry.member));
        CAIRN_ASSIGN_OR_RETURN(const uint64_t number, Unsigned("number", entry.number));
        const engine::Rank rank = member.rank;
        const bool is_new = out->reports.try_emplace(rank, std::move(member), number).second;
        return is_new ? absl::OkStatus() : Twice();
      }));
  return ForEach("silent", verdict.silent, engine::kMaxCatalogMembers, [&](int32_t rank) -> Status {
    CAIRN_RETURN_IF_ERROR(CheckRank("rank", rank));
    return out->silent.insert(rank).second ? absl::OkStatus() : Twice();
  });
}

StatusOr<peer::Message> FromWire(const peerwire::Verdict& verdict) {
  engine::JobVerdict out;
  CAIRN_RETURN_IF_ERROR(ValidateJob(verdict.job));
  out.job = verdict.job;
  CAIRN_RETURN_IF_ERROR(ReportsFrom(verdict, &out));
  out.final = verdict.conclusive;
  if (verdict.head < 0) return Refuse("head", absl::StrCat(verdict.head, " is below 0"));
  out.head = {verdict.head, verdict.head_decided};
  CAIRN_RETURN_IF_ERROR(
      ForEach("checkpoints", verdict.checkpoints, kMostEntries, [&](const auto& entry) -> Status {
        CAIRN_ASSIGN_OR_RETURN(const CheckpointId id, FromWire(entry.checkpoint));
        CAIRN_ASSIGN_OR_RETURN(engine::CheckpointVerdict of, FromWire(entry));
        return out.checkpoints.emplace(id, std::move(of)).second ? absl::OkStatus() : Twice();
      }));
  CAIRN_ASSIGN_OR_RETURN(out.latest,
                         OptionalFrom("latest", verdict.__isset.latest, verdict.latest));
  CAIRN_ASSIGN_OR_RETURN(out.protect,
                         OptionalFrom("protect", verdict.__isset.protect, verdict.protect));
  CAIRN_ASSIGN_OR_RETURN(out.target,
                         OptionalFrom("target", verdict.__isset.target, verdict.target));
  if (verdict.asked < 0 || verdict.asked > kMostReplicas) {
    return Refuse("asked", absl::StrCat(verdict.asked, " is not in 0 … ", kMostReplicas));
  }
  out.asked = verdict.asked;
  CAIRN_RETURN_IF_ERROR(CheckWords("why", verdict.why));
  out.why = verdict.why;
  out.owned = verdict.owned;
  out.owner_uid = static_cast<uint32_t>(verdict.owner_uid);
  out.owner_gid = static_cast<uint32_t>(verdict.owner_gid);
  CAIRN_ASSIGN_OR_RETURN(out.policy, cairn::FromWire(verdict.policy));
  CAIRN_RETURN_IF_ERROR(
      ForEach("attempts", verdict.attempts, kMostEntries, [&](const auto& entry) -> Status {
        CAIRN_ASSIGN_OR_RETURN(engine::AttemptReport of, FromWire(entry));
        return out.attempts.emplace(entry.attempt, std::move(of)).second ? absl::OkStatus()
                                                                         : Twice();
      }));
  const Status saving = ForEach("saving", verdict.saving, engine::kMaxCatalogMembers,
                                [&](const auto& entry) -> Status {
                                  CAIRN_RETURN_IF_ERROR(CheckRank("rank", entry.rank));
                                  const auto [at, is_new] = out.saving.try_emplace(entry.rank);
                                  return is_new ? SavingFrom(entry.saving, &at->second) : Twice();
                                });
  CAIRN_RETURN_IF_ERROR(saving);
  if (verdict.safe_attempt != 0) {
    CAIRN_RETURN_IF_ERROR(Annotate(ValidateAttempt(verdict.safe_attempt), "safe_attempt"));
    CAIRN_RETURN_IF_ERROR(Annotate(ValidateStep(verdict.safe_step), "safe_step"));
    out.safe = {verdict.safe_attempt, verdict.safe_step};
  }
  CAIRN_ASSIGN_OR_RETURN(const uint64_t answers, Unsigned("answers", verdict.answers));
  return peer::Message(peer::VerdictSaid{std::move(out), answers});
}

// --- what names only a job

peerwire::ReportWanted ToWire(const peer::ReportWanted& wanted) {
  peerwire::ReportWanted out;
  out.__set_job(wanted.job);
  out.__set_question(Signed(wanted.question));
  return out;
}
StatusOr<peer::Message> FromWire(const peerwire::ReportWanted& wanted) {
  CAIRN_RETURN_IF_ERROR(ValidateJob(wanted.job));
  CAIRN_ASSIGN_OR_RETURN(const uint64_t question, Unsigned("question", wanted.question));
  return peer::Message(peer::ReportWanted{wanted.job, question});
}

peerwire::VerdictWanted ToWire(const peer::VerdictWanted& wanted) {
  peerwire::VerdictWanted out;
  out.__set_job(wanted.job);
  out.__set_question(Signed(wanted.question));
  return out;
}
StatusOr<peer::Message> FromWire(const peerwire::VerdictWanted& wanted) {
  CAIRN_RETURN_IF_ERROR(ValidateJob(wanted.job));
  CAIRN_ASSIGN_OR_RETURN(const uint64_t question, Unsigned("question", wanted.question));
  return peer::Message(peer::VerdictWanted{wanted.job, question});
}

// --- places

StatusOr<CheckpointKey> KeyFrom(const std::string& job, const peerwire::Checkpoint& checkpoint) {
  CAIRN_RETURN_IF_ERROR(ValidateJob(job));
  CAIRN_ASSIGN_OR_RETURN(const CheckpointId id, FromWire(checkpoint));
  return CheckpointKey{job, id.step, id.attempt, id.revision};
}

Status CheckNameOrNone(const std::string& name) {
  return name.empty() ? absl::OkStatus() : Annotate(ValidateObjectName(name), "name");
}

peerwire::PlacesWanted ToWire(const peer::PlacesWanted& wanted) {
  const CheckpointKey& key = wanted.checkpoint;
  peerwire::PlacesWanted out;
  out.__set_job(key.job);
  out.__set_checkpoint(ToWire(CheckpointId{key.step, key.attempt, key.revision}));
  out.__set_name(wanted.name);
  return out;
}
StatusOr<peer::Message> FromWire(const peerwire::PlacesWanted& wanted) {
  CAIRN_ASSIGN_OR_RETURN(CheckpointKey key, KeyFrom(wanted.job, wanted.checkpoint));
  CAIRN_RETURN_IF_ERROR(CheckNameOrNone(wanted.name));
  return peer::Message(peer::PlacesWanted{std::move(key), wanted.name});
}

peerwire::PlacesSaid ToWire(const peer::PlacesSaid& said) {
  const CheckpointKey& key = said.checkpoint;
  peerwire::PlacesSaid out;
  out.__set_job(key.job);
  out.__set_checkpoint(ToWire(CheckpointId{key.step, key.attempt, key.revision}));
  out.__set_name(said.name);
  for (const peer::Place& place : said.places) {
    peerwire::Place& shown = out.places.emplace_back();
    shown.__set_writer(place.writer);
    shown.__set_digest(place.digest);
    shown.__set_world_size(place.world_size);
    shown.__set_bytes(Signed(place.bytes));
    shown.__set_owner(place.owner);
    shown.__set_holders({place.holders.begin(), place.holders.end()});
  }
  return out;
}

StatusOr<peer::Place> FromWire(const peerwire::Place& place) {
  peer::Place out;
  CAIRN_RETURN_IF_ERROR(ValidateWorld(place.writer, place.world_size));
  CAIRN_RETURN_IF_ERROR(CheckDigest("digest", place.digest));
  out.writer = place.writer;
  out.digest = place.digest;
  out.world_size = place.world_size;
  CAIRN_ASSIGN_OR_RETURN(out.bytes, Unsigned("bytes", place.bytes));
  if (place.owner != engine::kNoRank) {
    CAIRN_RETURN_IF_ERROR(CheckRank("owner", place.owner));
  }
  out.owner = place.owner;
  const Status holders =
      ForEach("holders", place.holders, engine::kMaxCatalogMembers, [&](int32_t rank) -> Status {
        CAIRN_RETURN_IF_ERROR(CheckRank("rank", rank));
        return out.holders.insert(rank).second ? absl::OkStatus() : Twice();
      });
  CAIRN_RETURN_IF_ERROR(holders);
  return out;
}

StatusOr<peer::Message> FromWire(const peerwire::PlacesSaid& said) {
  peer::PlacesSaid out;
  CAIRN_ASSIGN_OR_RETURN(out.checkpoint, KeyFrom(said.job, said.checkpoint));
  CAIRN_RETURN_IF_ERROR(CheckNameOrNone(said.name));
  out.name = said.name;
  CAIRN_RETURN_IF_ERROR(
      ForEach("places", said.places, kMostEntries, [&](const auto& entry) -> Status {
        CAIRN_ASSIGN_OR_RETURN(peer::Place place, FromWire(entry));
        out.places.push_back(std::move(place));
        return absl::OkStatus();
      }));
  return peer::Message(std::move(out));
}

peerwire::Record ToWire(const peer::Record& record) {
  peerwire::Record out;
  out.__set_job(record.job);
  out.__set_encoded(record.encoded);
  out.__set_number(static_cast<int64_t>(record.number));
  return out;
}
StatusOr<peer::Message> FromWire(const peerwire::Record& record) {
  CAIRN_RETURN_IF_ERROR(ValidateJob(record.job));
  if (record.encoded.empty()) return Refuse("encoded", "is empty");
  CAIRN_ASSIGN_OR_RETURN(const uint64_t number, Unsigned("number", record.number));
  return peer::Message(peer::Record{record.job, record.encoded, number});
}

peerwire::RecordHeld ToWire(const peer::RecordHeld& held) {
  peerwire::RecordHeld out;
  out.__set_job(held.job);
  out.__set_number(static_cast<int64_t>(held.number));
  return out;
}
StatusOr<peer::Message> FromWire(const peerwire::RecordHeld& held) {
  CAIRN_RETURN_IF_ERROR(ValidateJob(held.job));
  CAIRN_ASSIGN_OR_RETURN(const uint64_t number, Unsigned("number", held.number));
  return peer::Message(peer::RecordHeld{held.job, number});
}

// --- messages

// Writes each kind into its field.
struct IntoField {
  template <typename Value, typename Set>
  void Put(const Value& value, Set set) const {
    auto wire = ToWire(value);
    (out->*set)(std::make_shared<decltype(wire)>(std::move(wire)));
  }
  using M = peerwire::Message;
  void operator()(const peer::WantList& m) const { Put(m, &M::__set_want_list); }
  void operator()(const peer::HaveList& m) const { Put(m, &M::__set_have_list); }
  void operator()(const peer::ReleaseList& m) const { Put(m, &M::__set_release_list); }
  void operator()(const peer::Report& m) const { Put(m, &M::__set_report); }
  void operator()(const peer::ReportWanted& m) const { Put(m, &M::__set_report_wanted); }
  void operator()(const peer::VerdictSaid& m) const { Put(m, &M::__set_verdict); }
  void operator()(const peer::VerdictWanted& m) const { Put(m, &M::__set_verdict_wanted); }
  void operator()(const peer::Record& m) const { Put(m, &M::__set_record); }
  void operator()(const peer::PlacesWanted& m) const { Put(m, &M::__set_places_wanted); }
  void operator()(const peer::PlacesSaid& m) const { Put(m, &M::__set_places); }
  void operator()(const peer::RecordHeld& m) const { Put(m, &M::__set_record_held); }

  peerwire::Message* out;
};

}  // namespace

peerwire::Member ToPeerWire(const engine::MemberId& member) {
  peerwire::Member out;
  out.__set_rank(member.rank);
  out.__set_incarnation(member.incarnation);
  out.__set_instance(member.instance);
  return out;
}

StatusOr<engine::MemberId> FromPeerWire(const peerwire::Member& member) {
  CAIRN_RETURN_IF_ERROR(CheckRank("rank", member.rank));
  if (member.incarnation < 0) {
    return Refuse("incarnation", absl::StrCat(member.incarnation, " is below 0"));
  }
  if (member.instance.size() != engine::kInstanceBytes) {
    return Refuse("instance",
                  absl::StrCat(member.instance.size(), " bytes, wants ", engine::kInstanceBytes));
  }
  return engine::MemberId{member.rank, member.incarnation, member.instance};
}

peerwire::RingView ToPeerWire(const engine::RingView& view) {
  peerwire::RingView out;
  out.__set_epoch(view.epoch);
  out.seats.reserve(view.seats.size());
  for (const engine::RingView::Seat& seat : view.seats) {
    peerwire::RingSeat& one = out.seats.emplace_back();
    one.__set_incarnation(seat.incarnation);
    one.__set_address(seat.address);
  }
  return out;
}

StatusOr<engine::RingView> FromPeerWire(const peerwire::RingView& view) {
  if (view.epoch < 0) return Refuse("epoch", absl::StrCat(view.epoch, " is below 0"));
  if (view.seats.size() > engine::kMaxCatalogMembers) {
    return Refuse("seats",
                  absl::StrCat(view.seats.size(), ", at most ", engine::kMaxCatalogMembers));
  }
  engine::RingView in{view.epoch, {}};
  for (const peerwire::RingSeat& seat : view.seats) {
    if (seat.incarnation < 0 || seat.incarnation > engine::kMostIncarnation) {
      return Refuse("seats.incarnation",
                    absl::StrCat(seat.incarnation, " is not 0 to ", engine::kMostIncarnation));
    }
    if (!seat.address.empty()) {
      const Status address = TcpAddress::Parse(seat.address).status();
      if (!address.ok()) return Annotate(address, "seats.address");
    }
    in.seats.push_back({seat.incarnation, seat.address});
  }
  return in;
}

peerwire::Message ToPeerWire(const engine::peer::Message& message) {
  peerwire::Message out;
  std::visit(IntoField{&out}, message);
  return out;
}

StatusOr<engine::peer::Message> FromPeerWire(peerwire::Message message) {
  StatusOr<peer::Message> out = absl::InvalidArgumentError("no kind that is known");
  int kinds = 0;
  const auto take = [&](const char* kind, auto& field) {
    if (field == nullptr || ++kinds > 1) return;
    out = FromWire(*field);
    if (!out.ok()) out = Annotate(out.status(), kind);
    field.reset();  // each is held once while they are many
  };
  take("want_list", message.want_list);
  take("have_list", message.have_list);
  take("release_list", message.release_list);
  take("report", message.report);
  take("report_wanted", message.report_wanted);
  take("verdict", message.verdict);
  take("verdict_wanted", message.verdict_wanted);
  take("record", message.record);
  take("places_wanted", message.places_wanted);
  take("places", message.places);
  take("record_held", message.record_held);
  if (kinds > 1) return absl::InvalidArgumentError("more than one kind");
  return out;
}

peerwire::GrantQuestion ToPeerWire(const engine::peer::GrantQuestion& question) {
  peerwire::GrantQuestion out;
  out.__set_job(question.part.checkpoint.job);
  out.__set_part(ToWire(question.part));
  out.__set_digest(question.digest);
  return out;
}

StatusOr<engine::peer::GrantQuestion> FromPeerWire(const peerwire::GrantQuestion& question) {
  peer::GrantQuestion out;
  CAIRN_ASSIGN_OR_RETURN(out.part, PartOf(question.job, question.part));
  if (!question.digest.empty()) CAIRN_RETURN_IF_ERROR(CheckDigest("digest", question.digest));
  out.digest = question.digest;
  return out;
}

peerwire::Granted ToPeerWire(engine::peer::GrantAnswer answer) {
  peerwire::Granted out;
  out.__set_grant(Signed(answer.grant));
  out.__set_token(answer.token);
  out.__isset.manifest = true;
  out.manifest = std::move(answer.manifest);
  out.__isset.regions = true;
  out.regions.reserve(answer.regions.size());
  for (peer::Region& region : answer.regions) out.regions.push_back(std::move(region.descriptor));
  out.__set_valid_ms(answer.valid_ms);
  return out;
}

StatusOr<engine::peer::GrantAnswer> FromPeerWire(peerwire::Granted granted) {
  peer::GrantAnswer out;
  CAIRN_ASSIGN_OR_RETURN(out.grant, Unsigned("grant", granted.grant));
  if (granted.token.size() != kTokenBytes) {
    return Refuse("token", absl::StrCat(granted.token.size(), " bytes, wants ", kTokenBytes));
  }
  out.token = std::move(granted.token);
  out.manifest = std::move(granted.manifest);
  CAIRN_RETURN_IF_ERROR(ForEach("regions", granted.regions, kMostEntries, [&](std::string& region) {
    if (region.size() > kMostDescriptorBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(region.size(), " bytes, at most ", kMostDescriptorBytes));
    }
    out.regions.push_back({std::move(region)});
    return Status();
  }));
  CAIRN_RETURN_IF_ERROR(Unsigned("valid_ms", granted.valid_ms).status());
  out.valid_ms = granted.valid_ms;
  return out;
}

StatusOr<std::vector<uint64_t>> GrantsFromWire(const std::vector<int64_t>& grants) {
  std::vector<uint64_t> out;
  CAIRN_RETURN_IF_ERROR(ForEach("grants", grants, kMostEntries, [&](int64_t grant) -> Status {
    CAIRN_ASSIGN_OR_RETURN(const uint64_t number, Unsigned("grant", grant));
    out.push_back(number);
    return absl::OkStatus();
  }));
  return out;
}

}  // namespace cairn::rpc
