#include "server/facts/facts.h"

#include <type_traits>

#include "common/codec.h"

namespace cairn {
namespace {

// The number a kind of fact has in the journal. Never reused; a kind that changes its fields in a
// way an older build would misread gets a higher version.
template <typename T>
constexpr uint8_t kKindOf = 0;
template <>
constexpr uint8_t kKindOf<fact::Incarnation> = 1;
template <>
constexpr uint8_t kKindOf<fact::Job> = 2;
template <>
constexpr uint8_t kKindOf<fact::AttemptBegun> = 3;
template <>
constexpr uint8_t kKindOf<fact::WriterProcess> = 4;
template <>
constexpr uint8_t kKindOf<fact::StepWorld> = 5;
template <>
constexpr uint8_t kKindOf<fact::Resume> = 6;
template <>
constexpr uint8_t kKindOf<fact::Slab> = 7;
template <>
constexpr uint8_t kKindOf<fact::SlabGone> = 8;
template <>
constexpr uint8_t kKindOf<fact::SessionBegun> = 9;
template <>
constexpr uint8_t kKindOf<fact::SessionEnded> = 10;
template <>
constexpr uint8_t kKindOf<fact::Lent> = 11;
template <>
constexpr uint8_t kKindOf<fact::Unlent> = 12;
template <>
constexpr uint8_t kKindOf<fact::ObjectCreated> = 13;
template <>
constexpr uint8_t kKindOf<fact::ObjectSealed> = 14;
template <>
constexpr uint8_t kKindOf<fact::ObjectDropped> = 15;
template <>
constexpr uint8_t kKindOf<fact::ManifestCommitted> = 16;
template <>
constexpr uint8_t kKindOf<fact::ManifestDropped> = 17;
template <>
constexpr uint8_t kKindOf<fact::Persisted> = 18;
template <>
constexpr uint8_t kKindOf<fact::FilesDeleted> = 19;
template <>
constexpr uint8_t kKindOf<fact::StepRemoved> = 20;
template <>
constexpr uint8_t kKindOf<fact::Pinned> = 21;
template <>
constexpr uint8_t kKindOf<fact::PersistAsked> = 22;

constexpr uint8_t kVersion = 1;

// The fields of everything that can stand in a fact, in the order they are encoded: written once,
// used by both directions. `F` is const for encoding.
template <typename F, typename T>
constexpr bool kIs = std::is_same_v<std::remove_const_t<F>, T>;

template <typename F, typename Visit>
void VisitFields(F& f, const Visit& v) {
  if constexpr (kIs<F, CheckpointKey>) {
    v(f.job, f.step, f.attempt, f.revision);
  } else if constexpr (kIs<F, PartKey>) {
    v(f.checkpoint, f.writer);
  } else if constexpr (kIs<F, ExtentRef>) {
    v(f.slab, f.offset, f.length);
  } else if constexpr (kIs<F, ObjectEntry>) {
    v(f.name, f.kind, f.length, f.block_bytes, f.block_crcs, f.unknown);
  } else if constexpr (kIs<F, JobPolicy>) {
    v(f.mode, f.every, f.keep_last, f.keep_every, f.readers);
  } else if constexpr (kIs<F, fact::Incarnation>) {
    v(f.started_unix_ms, f.next_id);
  } else if constexpr (kIs<F, fact::Job>) {
    v(f.job, f.owner_uid, f.owner_gid, f.policy);
  } else if constexpr (kIs<F, fact::AttemptBegun>) {
    v(f.job, f.attempt, f.comes_from, f.unix_ms);
  } else if constexpr (kIs<F, fact::WriterProcess>) {
    v(f.job, f.attempt, f.writer, f.process);
  } else if constexpr (kIs<F, fact::StepWorld>) {
    v(f.job, f.attempt, f.step, f.world_size);
  } else if constexpr (kIs<F, fact::Resume>) {
    v(f.job, f.attempt, f.comes_from);
  } else if constexpr (kIs<F, fact::Slab>) {
    v(f.slab, f.bytes, f.use, f.owner_uid, f.owner_job);
  } else if constexpr (kIs<F, fact::SlabGone>) {
    v(f.slab);
  } else if constexpr (kIs<F, fact::SessionBegun>) {
    v(f.session, f.secret, f.uid, f.gid, f.pid, f.process, f.job, f.attempt, f.writer, f.world_size,
      f.local_writers, f.takes_fds);
  } else if constexpr (kIs<F, fact::SessionEnded>) {
    v(f.session);
  } else if constexpr (kIs<F, fact::Lent>) {
    v(f.lease, f.session, f.slab, f.mode, f.part, f.name);
  } else if constexpr (kIs<F, fact::Unlent>) {
    v(f.lease);
  } else if constexpr (kIs<F, fact::ObjectCreated>) {
    v(f.part, f.world_size, f.name, f.kind, f.length, f.extent, f.session, f.call);
  } else if constexpr (kIs<F, fact::ObjectSealed>) {
    v(f.part, f.entry, f.extent);
  } else if constexpr (kIs<F, fact::ObjectDropped>) {
    v(f.part, f.name);
  } else if constexpr (kIs<F, fact::ManifestCommitted>) {
    v(f.part, f.world_size, f.extent, f.bytes, f.digest);
  } else if constexpr (kIs<F, fact::ManifestDropped>) {
    v(f.part);
  } else if constexpr (kIs<F, fact::Persisted>) {
    v(f.checkpoint, f.digest);
  } else if constexpr (kIs<F, fact::FilesDeleted>) {
    v(f.checkpoint);
  } else if constexpr (kIs<F, fact::StepRemoved>) {
    v(f.job, f.step, f.up_to_attempt);
  } else if constexpr (kIs<F, fact::Pinned>) {
    v(f.checkpoint, f.pinned);
  } else {
    static_assert(kIs<F, fact::PersistAsked>, "every fact lists its fields here");
    v(f.checkpoint);
  }
}

// Greatest value of each enumeration that can stand in a fact.
constexpr Readers Last(Readers) { return Readers::kAll; }
constexpr PersistMode Last(PersistMode) { return PersistMode::kNewest; }
constexpr LeaseMode Last(LeaseMode) { return LeaseMode::kRead; }
constexpr ObjectKind Last(ObjectKind) { return ObjectKind::kNumpy; }
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
  void Put(const std::vector<uint32_t>& values) const {
    AppendInteger<uint32_t>(out_, static_cast<uint32_t>(values.size()));
    for (uint32_t value : values) AppendInteger(out_, value);
  }
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

  // All bytes were there, were used, and stood for values this build knows.
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
  void Take(std::vector<uint32_t>& values) const {
    uint32_t count = 0;
    good_ = good_ && cursor_.Take(&count) && count <= cursor_.left() / sizeof(uint32_t);
    if (!good_) return;
    values.resize(count);
    for (uint32_t& value : values) good_ = cursor_.Take(&value);
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

  // The visitor is handed down as const, as visitors are; what it has read is its own business.
  mutable Cursor cursor_;
  mutable bool good_ = true;
};

template <typename F>
bool DecodeAs(uint8_t kind, absl::string_view body, StatusOr<Fact>* decoded) {
  if (kind != kKindOf<F>) return false;
  F f;
  Decoder decoder(body);
  VisitFields(f, decoder);
  if (decoder.Done()) {
    *decoded = Fact(std::move(f));
  } else {
    *decoded = absl::DataLossError(
        absl::StrCat("fact: kind ", kind, " is cut short, too long or holds a bad value"));
  }
  return true;
}

template <typename... Fs>
StatusOr<Fact> DecodeAny(uint8_t kind, absl::string_view body, const std::variant<Fs...>*) {
  static_assert(((kKindOf<Fs> != 0) && ...), "every fact has a number");
  StatusOr<Fact> decoded =
      absl::UnimplementedError(absl::StrCat("fact: kind ", kind, " is unknown to this build"));
  (DecodeAs<Fs>(kind, body, &decoded) || ...);
  return decoded;
}

}  // namespace

std::string EncodeFact(const Fact& fact) {
  std::string out;
  std::visit(
      [&](const auto& f) {
        AppendInteger<uint8_t>(&out, kKindOf<std::decay_t<decltype(f)>>);
        AppendInteger<uint8_t>(&out, kVersion);
        VisitFields(f, Encoder(&out));
      },
      fact);
  return out;
}

StatusOr<Fact> DecodeFact(absl::string_view bytes) {
  Cursor cursor(bytes);
  uint8_t kind = 0, version = 0;
  if (!cursor.Take(&kind) || !cursor.Take(&version)) {
    return absl::DataLossError("fact: is cut short");
  }
  if (version == 0 || version > kVersion) {
    return absl::UnimplementedError(
        absl::StrCat("fact: kind ", kind, " version ", version, " is unknown to this build"));
  }
  return DecodeAny(kind, cursor.rest(), static_cast<const Fact*>(nullptr));
}

}  // namespace cairn
