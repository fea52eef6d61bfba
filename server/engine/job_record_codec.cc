// The encoded form of a JobRecord; its header has the layout.
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/checksum.h"
#include "common/codec.h"
#include "server/engine/job_record.h"

namespace cairn::engine {
namespace {

constexpr absl::string_view kMagic("CAIRNJR\x01", 8);
constexpr uint32_t kFormatVersion = 2;
// What stands in a record of the first format a reader of that one understands.
constexpr uint32_t kWithoutAsked = 1;

enum class LineageForm : uint8_t { kWhole = 0, kFrom = 1, kSame = 2 };

Status BadRecord(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("job record: ", what));
}

using Origins = std::map<Attempt, JobRecord::Origin>;

// What goes on from the checkpoint, if the record knows where its attempt came from.
std::optional<Lineage> LineageFrom(Step step, Attempt attempt, const Origins& origins) {
  const auto from = origins.find(attempt);
  if (from == origins.end()) return std::nullopt;
  return cairn::LineageFrom(step, attempt, from->second.lineage);
}

class Encoder {
 public:
  explicit Encoder(const JobRecord& record) : record_(record), out_(kMagic) {}

  std::string Run() {
    Add<uint32_t>(record_.asked.empty() ? kWithoutAsked : kFormatVersion);
    AddBytes(record_.job);
    Add<uint8_t>(record_.owner.has_value() ? 1 : 0);
    const JobRecord::Owner owner = record_.owner.value_or(JobRecord::Owner());
    Add<uint32_t>(owner.uid);
    Add<uint32_t>(owner.gid);
    AddPolicy();
    AddLine();
    AddPins();
    AddRemoved();
    Add<int64_t>(record_.highest_protected.first);
    Add<int64_t>(record_.highest_protected.second);
    if (!record_.asked.empty()) AddAsked();
    Add<uint32_t>(Crc32c(0, out_.data(), out_.size()));
    return std::move(out_);
  }

 private:
  template <typename T>
  void Add(T value) {
    AppendInteger<T>(&out_, value);
  }
  template <typename Container>
  void AddCount(const Container& container) {
    Add<uint32_t>(static_cast<uint32_t>(container.size()));
  }
  void AddBytes(absl::string_view bytes) {
    AddCount(bytes);
    out_.append(bytes.data(), bytes.size());
  }
  void AddStamp(const Stamp& stamp) {
    Add<int64_t>(stamp.version);
    Add<int32_t>(stamp.rank);
  }

  void AddPolicy() {
    const JobPolicy& policy = record_.policy;
    Add<uint8_t>(static_cast<uint8_t>(policy.mode));
    Add<int64_t>(policy.every);
    Add<int64_t>(policy.keep_last);
    Add<int64_t>(policy.keep_every);
    Add<uint8_t>(static_cast<uint8_t>(policy.readers));
    Add<int32_t>(policy.replicas);
    AddStamp(record_.policy_stamp);
  }

  void AddLineage(const Lineage& lineage, const Lineage* before) {
    const Attempt attempt = lineage.attempt();
    if (before != nullptr && *before == lineage) {
      Add(static_cast<uint8_t>(LineageForm::kSame));
    } else if (attempt > 0 && LineageFrom(lineage.step(), attempt, record_.attempts) == lineage) {
      Add(static_cast<uint8_t>(LineageForm::kFrom));
      Add<int64_t>(attempt);
      Add<int64_t>(lineage.step());
    } else {
      Add(static_cast<uint8_t>(LineageForm::kWhole));
      AddBytes(EncodeLineage(lineage));
    }
  }

  void AddLine() {
    AddCount(record_.attempts);
    const Lineage* before = nullptr;
    for (const auto& [attempt, origin] : record_.attempts) {
      Add<int64_t>(attempt);
      Add<int64_t>(origin.first);
      Add<int64_t>(origin.unix_ms);
      AddLineage(origin.lineage, before);
      before = &origin.lineage;
    }
    AddCount(record_.decisions);
    before = nullptr;
    for (const auto& [id, decision] : record_.decisions) {
      Add<int64_t>(id.first);
      Add<uint8_t>(static_cast<uint8_t>(id.second));
      Add<int64_t>(decision.unix_ms);
      AddStamp(decision.stamp);
      AddLineage(decision.lineage, before);
      before = &decision.lineage;
    }
  }

  void AddPins() {
    AddCount(record_.pins);
    for (const auto& [id, pin] : record_.pins) {
      Add<int64_t>(id.step);
      Add<int64_t>(id.attempt);
      Add<int32_t>(id.revision);
      Add<uint8_t>(pin.pinned ? 1 : 0);
      AddStamp(pin.stamp);
    }
  }

  void AddAsked() {
    AddCount(record_.asked);
    for (const CheckpointId& id : record_.asked) {
      Add<int64_t>(id.step);
      Add<int64_t>(id.attempt);
      Add<int32_t>(id.revision);
    }
  }

  void AddRemoved() {
    AddCount(record_.removed.steps);
    for (const auto& [step, ranges] : record_.removed.steps) {
      Add<int64_t>(step);
      AddCount(ranges.ranges());
      for (const AttemptRanges::Range& range : ranges.ranges()) {
        Add<int64_t>(range.first);
        Add<int64_t>(range.last);
      }
    }
    Add<int64_t>(record_.removed_up_to);
  }

  const JobRecord& record_;
  std::string out_;
};

// Takes what is there, within bounds. That the values are in their order, and in the one form that there is
// of them, shows when they are encoded again.
class Decoder {
 public:
  explicit Decoder(absl::string_view bytes) : cursor_(bytes) {}

  StatusOr<JobRecord> Run(uint32_t version) {
    uint8_t owned = 0;
    JobRecord::Owner owner;
    absl::string_view job;
    if (!TakeBytes(&job) || !cursor_.Take(&owned) || !cursor_.Take(&owner.uid) ||
        !cursor_.Take(&owner.gid)) {
      return BadRecord("is cut short");
    }
    record_.job = std::string(job);
    if (!ValidateJob(record_.job).ok()) return BadRecord("names no job");
    if (owned == 1) record_.owner = owner;
    CAIRN_RETURN_IF_ERROR(TakePolicy());
    CAIRN_RETURN_IF_ERROR(TakeAttempts());
    CAIRN_RETURN_IF_ERROR(TakeDecisions());
    CAIRN_RETURN_IF_ERROR(TakePins());
    CAIRN_RETURN_IF_ERROR(TakeRemoved());
    auto& [attempt, step] = record_.highest_protected;
    if (!cursor_.Take(&record_.removed_up_to) || !cursor_.Take(&attempt) || !cursor_.Take(&step)) {
      return BadRecord("is cut short");
    }
    if (record_.removed_up_to < 0 || attempt < 0 || step < kNoStep ||
        (attempt == 0) != (step == kNoStep)) {
      return BadRecord("what was removed or protected is out of range");
    }
    if (version > kWithoutAsked) CAIRN_RETURN_IF_ERROR(TakeAsked());
    if (cursor_.left() != 0) return BadRecord("something is left over");
    return std::move(record_);
  }

 private:
  bool TakeBytes(absl::string_view* bytes) {
    uint32_t length = 0;
    return cursor_.Take(&length) && cursor_.TakeBytes(length, bytes);
  }
  bool TakeCount(size_t most, uint32_t* count) { return cursor_.Take(count) && *count <= most; }
  bool TakeStamp(Stamp* stamp) {
    return cursor_.Take(&stamp->version) && cursor_.Take(&stamp->rank) && stamp->rank >= kNoRank;
  }
  bool TakeFlag(bool* flag) {
    uint8_t value = 0;
    if (!cursor_.Take(&value) || value > 1) return false;
    *flag = value == 1;
    return true;
  }

  Status TakePolicy() {
    JobPolicy& policy = record_.policy;
    uint8_t mode = 0, readers = 0;
    const bool taken = cursor_.Take(&mode) && cursor_.Take(&policy.every) &&
                       cursor_.Take(&policy.keep_last) && cursor_.Take(&policy.keep_every) &&
                       cursor_.Take(&readers) && cursor_.Take(&policy.replicas) &&
                       TakeStamp(&record_.policy_stamp);
    if (!taken || mode > static_cast<uint8_t>(PersistMode::kNewest) ||
        readers > static_cast<uint8_t>(Readers::kAll) || policy.every < 1 || policy.keep_last < 0 ||
        policy.keep_every < 0 || policy.replicas < kRingsReplicas ||
        policy.replicas > kMostReplicas || record_.policy_stamp.version < 0) {
      return BadRecord("its policy is out of range");
    }
    policy.mode = static_cast<PersistMode>(mode);
    policy.readers = static_cast<Readers>(readers);
    return absl::OkStatus();
  }

  // Of what is younger than `below`.
  Status TakeLineage(const Lineage* before, Attempt below, Lineage* lineage) {
    uint8_t form = 0;
    if (!cursor_.Take(&form)) return BadRecord("is cut short");
    switch (static_cast<LineageForm>(form)) {
      case LineageForm::kWhole: {
        absl::string_view bytes;
        if (!TakeBytes(&bytes)) return BadRecord("is cut short");
        CAIRN_ASSIGN_OR_RETURN(*lineage, DecodeLineage(bytes));
        break;
      }
      case LineageForm::kFrom: {
        Attempt attempt = 0;
        Step step = 0;
        if (!cursor_.Take(&attempt) || !cursor_.Take(&step)) return BadRecord("is cut short");
        const auto from = LineageFrom(step, attempt, record_.attempts);
        if (step < 0 || !from.has_value()) return BadRecord("a lineage goes on from nowhere");
        *lineage = *from;
        break;
      }
      case LineageForm::kSame:
        if (before == nullptr) return BadRecord("a lineage goes on from nowhere");
        *lineage = *before;
        break;
      default:
        return BadRecord("the form of a lineage is unknown");
    }
    if (lineage->attempt() >= below) return BadRecord("a lineage is not older than what has it");
    return absl::OkStatus();
  }

  Status TakeAttempts() {
    uint32_t count = 0;
    if (!TakeCount(kMostRecordAttempts, &count)) return BadRecord("has too many attempts");
    const Lineage* before = nullptr;
    for (uint32_t i = 0; i < count; ++i) {
      Attempt attempt = 0;
      JobRecord::Origin origin;
      if (!cursor_.Take(&attempt) || !cursor_.Take(&origin.first) ||
          !cursor_.Take(&origin.unix_ms) || attempt <= 0 || origin.first < kNoStep) {
        return BadRecord("an attempt is out of range");
      }
      CAIRN_RETURN_IF_ERROR(TakeLineage(before, attempt, &origin.lineage));
      before = &record_.attempts.insert_or_assign(attempt, std::move(origin)).first->second.lineage;
    }
    return absl::OkStatus();
  }

  Status TakeDecisions() {
    uint32_t count = 0;
    if (!TakeCount(kMostRecordDecisions, &count)) return BadRecord("has too many decisions");
    const Lineage* before = nullptr;
    for (uint32_t i = 0; i < count; ++i) {
      Attempt number = 0;
      uint8_t kind = 0;
      JobRecord::Decision decision;
      if (!cursor_.Take(&number) || !cursor_.Take(&kind) || !cursor_.Take(&decision.unix_ms) ||
          !TakeStamp(&decision.stamp) || number <= 0 || decision.stamp.version < 1 ||
          kind > static_cast<uint8_t>(LineRecordKind::kUse)) {
        return BadRecord("a decision is out of range");
      }
      CAIRN_RETURN_IF_ERROR(TakeLineage(before, number, &decision.lineage));
      const JobRecord::DecisionId id(number, static_cast<LineRecordKind>(kind));
      before = &record_.decisions.insert_or_assign(id, std::move(decision)).first->second.lineage;
    }
    return absl::OkStatus();
  }

  Status TakePins() {
    uint32_t count = 0;
    if (!TakeCount(2 * kMostRecordPins, &count)) return BadRecord("has too many pins");
    for (uint32_t i = 0; i < count; ++i) {
      CheckpointId id;
      JobRecord::Pin pin;
      if (!cursor_.Take(&id.step) || !cursor_.Take(&id.attempt) || !cursor_.Take(&id.revision) ||
          !TakeFlag(&pin.pinned) || !TakeStamp(&pin.stamp) || id.step < 0 || id.attempt <= 0 ||
          id.revision < 0 || pin.stamp.version < 1) {
        return BadRecord("a pin is out of range");
      }
      record_.pins[id] = pin;
    }
    return absl::OkStatus();
  }

  Status TakeAsked() {
    uint32_t count = 0;
    if (!TakeCount(kMostRecordAsked, &count)) return BadRecord("has too many that are asked for");
    for (uint32_t i = 0; i < count; ++i) {
      CheckpointId id;
      if (!cursor_.Take(&id.step) || !cursor_.Take(&id.attempt) || !cursor_.Take(&id.revision) ||
          id.step < 0 || id.attempt <= 0 || id.revision < 0) {
        return BadRecord("what is asked for is out of range");
      }
      record_.asked.insert(id);
    }
    return absl::OkStatus();
  }

  Status TakeRemoved() {
    uint32_t steps = 0;
    size_t left = 2 * kMostRecordRanges;
    if (!TakeCount(left, &steps)) return BadRecord("has too many removed steps");
    for (uint32_t i = 0; i < steps; ++i) {
      Step step = 0;
      uint32_t ranges = 0;
      if (!cursor_.Take(&step) || !TakeCount(left, &ranges) || step < 0 || ranges == 0) {
        return BadRecord("a removed step is out of range");
      }
      left -= ranges;
      AttemptRanges& removed = record_.removed.steps[step];
      Attempt above = 0;
      for (uint32_t j = 0; j < ranges; ++j) {
        AttemptRanges::Range range;
        if (!cursor_.Take(&range.first) || !cursor_.Take(&range.last) || range.first <= above ||
            range.first > range.last) {
          return BadRecord("a removed range is out of range");
        }
        above = range.last;
        removed.Add(range.first, range.last);
      }
    }
    return absl::OkStatus();
  }

  Cursor cursor_;
  JobRecord record_;
};

}  // namespace

std::string EncodeJobRecord(const JobRecord& record) { return Encoder(record).Run(); }

StatusOr<JobRecord> DecodeJobRecord(absl::string_view bytes) {
  if (bytes.size() > kMaxJobRecordBytes) return BadRecord("is longer than any");
  if (bytes.size() < kMagic.size() + 2 * sizeof(uint32_t)) return BadRecord("is cut short");
  if (bytes.substr(0, kMagic.size()) != kMagic) return BadRecord("the magic is wrong");
  const size_t end = bytes.size() - sizeof(uint32_t);
  if (ReadInteger<uint32_t>(bytes.data() + end) != Crc32c(0, bytes.data(), end)) {
    return BadRecord("the checksum does not fit");
  }
  const uint32_t version = ReadInteger<uint32_t>(bytes.data() + kMagic.size());
  if (version > kFormatVersion) {
    return absl::UnimplementedError(absl::StrCat("job record: format ", version,
                                                 " is newer than this build's ", kFormatVersion));
  }
  const size_t begin = kMagic.size() + sizeof(version);
  CAIRN_ASSIGN_OR_RETURN(JobRecord record, Decoder(bytes.substr(begin, end - begin)).Run(version));
  if (!record.IsTidy() || EncodeJobRecord(record) != bytes) {
    return BadRecord("is not in the form that records have");
  }
  return record;
}

}  // namespace cairn::engine
