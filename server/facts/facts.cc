#include "server/facts/facts.h"

#include <algorithm>
#include <array>
#include <concepts>
#include <type_traits>

#include "common/codec.h"

namespace cairn {
namespace {

// A fact without a line in the table, or with two, does not compile: std::get finds a type that
// stands in a tuple exactly once.
template <typename F>
constexpr FactKind kKind = std::get<KindOfFact<F>>(kFactKinds);

template <typename... Fs>
constexpr bool EveryFactHasANumberOfItsOwn(const std::variant<Fs...>*) {
  if (std::tuple_size_v<decltype(kFactKinds)> != sizeof...(Fs)) return false;
  std::array<int, 256> uses = {};
  (++uses[kKind<Fs>.number], ...);
  return uses[0] == 0 && *std::max_element(uses.begin(), uses.end()) == 1;
}
static_assert(EveryFactHasANumberOfItsOwn(static_cast<const Fact*>(nullptr)));

// The top bit of the version's byte: who does not know the fact may skip it (facts.h).
constexpr uint8_t kSkippable = 0x80;
static_assert(std::apply(
    [](const auto&... kind) {
      return ((kind.version > 0 && (kind.version & kSkippable) == 0 && kind.oldest > 0 &&
               kind.oldest <= kind.version) &&
              ...);
    },
    kFactKinds));

template <typename F, typename Value>
concept Is = std::is_same_v<std::remove_const_t<F>, Value>;

// The fields of each value, in the order in which they are encoded. A change to one of these lines
// changes what stands in journals: it needs a new version of every kind that the value is in.
void VisitFields(Is<CheckpointKey> auto& f, const auto& v) {
  v(f.job, f.step, f.attempt, f.revision);
}
void VisitFields(Is<PartKey> auto& f, const auto& v) { v(f.checkpoint, f.writer); }
void VisitFields(Is<ExtentRef> auto& f, const auto& v) { v(f.slab, f.offset, f.length); }
void VisitFields(Is<ObjectEntry> auto& f, const auto& v) {
  v(f.name, f.kind, f.length, f.block_bytes, f.block_crcs, f.unknown);
}
void VisitFields(Is<JobPolicy> auto& f, const auto& v) {
  v(f.mode, f.every, f.keep_last, f.keep_every, f.readers, f.replicas);
}

void VisitFields(Is<LineRecord> auto& f, const auto& v) { v(f.job, f.number, f.kind, f.lineage); }

void VisitFields(Is<fact::DaemonLife> auto& f, const auto& v) { v(f.started_unix_ms, f.next_id); }
void VisitFields(Is<fact::Job> auto& f, const auto& v) {
  v(f.job, f.owner_uid, f.owner_gid, f.policy, f.policy_version, f.policy_rank);
}
void VisitFields(Is<fact::JobForgotten> auto& f, const auto& v) { v(f.job); }
void VisitFields(Is<fact::AttemptBegun> auto& f, const auto& v) {
  v(f.job, f.attempt, f.first_step, f.lineage, f.unix_ms);
}
void VisitFields(Is<fact::WriterProcess> auto& f, const auto& v) {
  v(f.job, f.attempt, f.world_size, f.writer, f.process, f.rank);
}
void VisitFields(Is<fact::StepWorld> auto& f, const auto& v) {
  v(f.job, f.attempt, f.step, f.world_size, f.process, f.rank);
}
void VisitFields(Is<fact::LineDecided> auto& f, const auto& v) { v(f.record, f.unix_ms); }
void VisitFields(Is<fact::Slab> auto& f, const auto& v) {
  v(f.slab, f.bytes, f.use, f.owner_uid, f.owner_job, f.by_path, f.condemned);
}
void VisitFields(Is<fact::SlabGone> auto& f, const auto& v) { v(f.slab); }
void VisitFields(Is<fact::SessionBegun> auto& f, const auto& v) {
  v(f.session, f.secret, f.uid, f.gid, f.pid, f.process, f.job, f.attempt, f.writer, f.world_size,
    f.local_writers, f.takes_fds, f.run, f.restart, f.saves);
}
void VisitFields(Is<fact::SessionEnded> auto& f, const auto& v) { v(f.session); }
void VisitFields(Is<fact::Lent> auto& f, const auto& v) {
  v(f.lease, f.session, f.slab, f.mode, f.part, f.name);
}
void VisitFields(Is<fact::Unlent> auto& f, const auto& v) { v(f.lease); }
void VisitFields(Is<fact::ObjectCreated> auto& f, const auto& v) {
  v(f.part, f.world_size, f.name, f.kind, f.length, f.extent, f.session, f.call);
}
void VisitFields(Is<fact::ObjectSealed> auto& f, const auto& v) { v(f.part, f.entry, f.extent); }
void VisitFields(Is<fact::ObjectDropped> auto& f, const auto& v) { v(f.part, f.name); }
void VisitFields(Is<fact::PartCommitted> auto& f, const auto& v) {
  v(f.part, f.world_size, f.extent, f.bytes, f.digest, f.slabs, f.role, f.owner);
}
void VisitFields(Is<fact::PartLeftSlab> auto& f, const auto& v) { v(f.part, f.slab); }
void VisitFields(Is<fact::PartDropped> auto& f, const auto& v) { v(f.part, f.name); }
void VisitFields(Is<fact::Persisted> auto& f, const auto& v) { v(f.checkpoint, f.digest); }
void VisitFields(Is<fact::FilesDeleted> auto& f, const auto& v) { v(f.checkpoint); }
void VisitFields(Is<fact::StepRemoved> auto& f, const auto& v) {
  v(f.job, f.step, f.first_attempt, f.up_to_attempt);
}
void VisitFields(Is<fact::Pinned> auto& f, const auto& v) {
  v(f.checkpoint, f.pinned, f.version, f.rank);
}
void VisitFields(Is<fact::PersistAsked> auto& f, const auto& v) { v(f.checkpoint); }
void VisitFields(Is<fact::StorageRoot> auto& f, const auto& v) { v(f.id, f.instance); }
void VisitFields(Is<fact::StepSafe> auto& f, const auto& v) { v(f.job, f.attempt, f.step); }
void VisitFields(Is<fact::FetchBegun> auto& f, const auto& v) { v(f.slab, f.part, f.digest); }
void VisitFields(Is<fact::MemberLife> auto& f, const auto& v) {
  v(f.incarnation, f.instance, f.superseded_by, f.believed);
}
void VisitFields(Is<fact::Leaving> auto& f, const auto& v) { v(f.on); }

void VisitFields(Is<fact::RingSeat> auto& f, const auto& v) {
  v(f.instance, f.rank, f.incarnation, f.drained, f.epoch, f.incarnations, f.nodes);
}

// The greatest value of each enumeration that can stand in a fact.
constexpr Readers Last(Readers) { return Readers::kAll; }
constexpr PersistMode Last(PersistMode) { return PersistMode::kNewest; }
constexpr LeaseMode Last(LeaseMode) { return LeaseMode::kStanding; }
constexpr LineRecordKind Last(LineRecordKind) { return LineRecordKind::kOrigin; }
constexpr ObjectKind Last(ObjectKind) { return ObjectKind::kNumpy; }
constexpr PartRole Last(PartRole) { return PartRole::kFetched; }
constexpr fact::SlabUse Last(fact::SlabUse) { return fact::SlabUse::kManifests; }

class Encoder {
 public:
  explicit Encoder(std::string* out) : out_(out) {}

  template <typename... Fields>
  void operator()(const Fields&... fields) const {
    (Put(fields), ...);
  }

 private:
  void Put(const std::string& value) const {
    AppendInteger<uint32_t>(out_, static_cast<uint32_t>(value.size()));
    *out_ += value;
  }
  template <typename T>
  requires std::is_integral_v<T>
  void Put(const std::vector<T>& values) const {
    AppendInteger<uint32_t>(out_, static_cast<uint32_t>(values.size()));
    for (const T value : values) AppendInteger(out_, value);
  }
  void Put(const Lineage& value) const { Put(EncodeLineage(value)); }
  void Put(bool value) const { AppendInteger<uint8_t>(out_, value ? 1 : 0); }
  template <typename T>
  void Put(const T& value) const {
    if constexpr (std::is_enum_v<T>) {
      AppendInteger(out_, static_cast<std::underlying_type_t<T>>(value));
    } else if constexpr (std::is_integral_v<T>) {
      AppendInteger(out_, value);
    } else {
      VisitFields(value, *this);
    }
  }

  std::string* const out_;
};

class Decoder {
 public:
  explicit Decoder(absl::string_view bytes) : cursor_(bytes) {}

  // True when no byte was missing, none was left over, and all values are known to this build.
  bool Done() const { return good_ && cursor_.left() == 0; }

  template <typename... Fields>
  void operator()(Fields&... fields) const {
    (Take(fields), ...);
  }

 private:
  void Take(std::string& value) const {
    uint32_t length = 0;
    absl::string_view bytes;
    good_ = good_ && cursor_.Take(&length) && cursor_.TakeBytes(length, &bytes);
    if (good_) value = std::string(bytes);
  }
  template <typename T>
  requires std::is_integral_v<T>
  void Take(std::vector<T>& values) const {
    uint32_t count = 0;
    good_ = good_ && cursor_.Take(&count) && count <= cursor_.left() / sizeof(T);
    if (!good_) return;
    values.resize(count);
    for (T& value : values) good_ = cursor_.Take(&value);
  }
  void Take(Lineage& value) const {
    std::string bytes;
    Take(bytes);
    if (!good_) return;
    StatusOr<Lineage> lineage = DecodeLineage(bytes);
    good_ = lineage.ok();
    if (good_) value = *std::move(lineage);
  }
  void Take(bool& value) const {
    uint8_t byte = 0;
    good_ = good_ && cursor_.Take(&byte) && byte <= 1;
    value = byte == 1;
  }
  template <typename T>
  void Take(T& value) const {
    if constexpr (std::is_enum_v<T>) {
      std::underlying_type_t<T> number = 0;
      good_ = good_ && cursor_.Take(&number) &&
              number <= static_cast<std::underlying_type_t<T>>(Last(T{}));
      if (good_) value = static_cast<T>(number);
    } else if constexpr (std::is_integral_v<T>) {
      good_ = good_ && cursor_.Take(&value);
    } else {
      VisitFields(value, *this);
    }
  }

  // VisitFields takes its visitor by const reference, so what changes while reading is mutable.
  mutable Cursor cursor_;
  mutable bool good_ = true;
};

// How an earlier version of a kind is read. What it does not say gets the value that claims least.
// False: it never had that version. A kind that reads earlier versions does not compile without.
bool TakeOlder(fact::AttemptBegun& f, int version, const Decoder& take) {
  if (version != 2) return false;
  Step comes_from = kUnknownStep;
  take(f.job, f.attempt, f.first_step, comes_from, f.unix_ms);
  // Only the step of the origin was told, not its attempt. It is asked for again.
  f.lineage = comes_from == kNoStep ? Lineage() : Lineage::OfUnknown();
  return true;
}
bool TakeOlder(fact::Slab& f, int version, const Decoder& take) {
  if (version == 2) {
    take(f.slab, f.bytes, f.use, f.owner_uid, f.owner_job, f.by_path);
    return true;
  }
  if (version != 1) return false;
  take(f.slab, f.bytes, f.use, f.owner_uid, f.owner_job);
  f.by_path = !f.owner_job.empty();  // whether anybody opened it by path was not told
  return true;
}
// There were no standing mappings.
bool TakeOlder(fact::Lent& f, int version, const Decoder& take) {
  if (version != 1) return false;
  take(f.lease, f.session, f.slab, f.mode, f.part, f.name);
  return f.mode != LeaseMode::kStanding;
}
// All of an attempt's steps of several writers were taken to have as many.
bool TakeOlder(fact::WriterProcess& f, int version, const Decoder& take) {
  if (version != 1) return false;
  take(f.job, f.attempt, f.writer, f.process);
  f.rank = f.writer;
  return true;
}
// Whose a step of one writer is was not told: it is his who enters it next.
bool TakeOlder(fact::StepWorld& f, int version, const Decoder& take) {
  if (version != 1) return false;
  take(f.job, f.attempt, f.step, f.world_size);
  return true;
}
// Without a launcher's name it is waited for like any other. Whether it saves is seen from its writers.
bool TakeOlder(fact::SessionBegun& f, int version, const Decoder& take) {
  if (version != 1) return false;
  take(f.session, f.secret, f.uid, f.gid, f.pid, f.process, f.job, f.attempt, f.writer,
       f.world_size, f.local_writers, f.takes_fds);
  return true;
}
// How many replicas a job wants was not told at first: as many as the ring's others. Nor was how often its
// policy had been said: as a default it counts less than what a member says.
bool TakeOlder(fact::Job& f, int version, const Decoder& take) {
  if (version == 2) {
    take(f.job, f.owner_uid, f.owner_gid, f.policy);
    return true;
  }
  if (version != 1) return false;
  JobPolicy& policy = f.policy;
  take(f.job, f.owner_uid, f.owner_gid, policy.mode, policy.every, policy.keep_last,
       policy.keep_every, policy.readers);
  return true;
}
// There was no ring: all parts were the node's own.
bool TakeOlder(fact::PartCommitted& f, int version, const Decoder& take) {
  if (version != 2) return false;
  take(f.part, f.world_size, f.extent, f.bytes, f.digest, f.slabs);
  return true;
}
bool TakeOlder(fact::StepRemoved& f, int version, const Decoder& take) {
  if (version != 1) return false;
  take(f.job, f.step, f.up_to_attempt);
  f.first_attempt = 1;
  return true;
}
bool TakeOlder(fact::Pinned& f, int version, const Decoder& take) {
  if (version != 1) return false;
  take(f.checkpoint, f.pinned);
  return true;
}
// Whether another life has its place was not kept at first: its members tell it again. Nor was whether a member had
// met it, later: it may have.
bool TakeOlder(fact::MemberLife& f, int version, const Decoder& take) {
  f.believed = true;
  if (version == 2) {
    take(f.incarnation, f.instance, f.superseded_by);
    return true;
  }
  if (version != 1) return false;
  take(f.incarnation, f.instance);
  return true;
}

// False when this build does not know the version.
template <typename F>
bool TakeFields(F& f, int version, const Decoder& decoder) {
  constexpr FactKind kind = kKind<F>;
  if (version == kind.version) {
    VisitFields(f, decoder);
    return true;
  }
  if constexpr (kind.oldest < kind.version) {
    if (version >= kind.oldest && version < kind.version) return TakeOlder(f, version, decoder);
  }
  return false;
}

// False when the bytes are of another kind than F.
template <typename F>
bool DecodeAs(uint8_t number, uint8_t version, absl::string_view fields, StatusOr<Fact>* decoded) {
  constexpr FactKind kind = kKind<F>;
  if (number != kind.number) return false;
  const auto named = [&] { return absl::StrCat("fact: kind ", number, " (", kind.name, ")"); };
  F f;
  const Decoder decoder(fields);
  if (!TakeFields(f, version, decoder)) {
    *decoded = absl::UnimplementedError(absl::StrCat(
        named(), " has version ", version, "; this build knows ",
        kind.oldest < kind.version ? absl::StrCat(kind.oldest, " to ") : "", kind.version));
  } else if (decoder.Done()) {
    *decoded = Fact(std::move(f));
  } else {
    *decoded =
        absl::DataLossError(absl::StrCat(named(), " is cut short, too long or holds a bad value"));
  }
  return true;
}

template <typename... Fs>
StatusOr<Fact> DecodeAny(uint8_t number, uint8_t version, absl::string_view fields,
                         const std::variant<Fs...>*) {
  StatusOr<Fact> decoded = absl::UnimplementedError(
      absl::StrCat("fact: kind ", number, " version ", version, " is unknown to this build"));
  (DecodeAs<Fs>(number, version, fields, &decoded) || ...);
  return decoded;
}

}  // namespace

static_assert(std::is_nothrow_move_constructible_v<Fact::variant>);
Fact::Fact(const Fact&) = default;
Fact::Fact(Fact&&) noexcept = default;
Fact& Fact::operator=(const Fact&) = default;
Fact& Fact::operator=(Fact&&) noexcept = default;
Fact::~Fact() = default;

const FactKind& KindOf(const Fact& fact) {
  return std::visit(
      [](const auto& f) -> const FactKind& { return kKind<std::decay_t<decltype(f)>>; }, fact);
}

std::string EncodeFact(const Fact& fact) {
  std::string out;
  std::visit(
      [&](const auto& f) {
        constexpr FactKind kind = kKind<std::decay_t<decltype(f)>>;
        AppendInteger<uint8_t>(&out, kind.number);
        AppendInteger<uint8_t>(&out, kind.version | (kind.skippable ? kSkippable : 0));
        VisitFields(f, Encoder(&out));
      },
      fact);
  return out;
}

StatusOr<std::optional<Fact>> DecodeFact(absl::string_view bytes) {
  Cursor cursor(bytes);
  uint8_t number = 0, version = 0;
  if (!cursor.Take(&number) || !cursor.Take(&version)) {
    return absl::DataLossError("fact: is cut short");
  }
  const bool skippable = (version & kSkippable) != 0;
  StatusOr<Fact> decoded =
      DecodeAny(number, version & ~kSkippable, cursor.rest(), static_cast<const Fact*>(nullptr));
  if (decoded.ok()) return std::optional<Fact>(*std::move(decoded));
  if (skippable && absl::IsUnimplemented(decoded.status())) return std::optional<Fact>();
  return decoded.status();
}

}  // namespace cairn
