#include "common/fd_channel.h"

#include <cstring>

#include "absl/strings/str_cat.h"

namespace cairn {
namespace {

constexpr uint32_t kHeaderMagic = 0x4E524143;  // "CARN"
constexpr uint16_t kVersion = 1;

enum class Type : uint16_t { kAttach = 1, kAttached = 2, kSlab = 3, kFile = 4 };

// The messages as they lie in a packet.
struct Header {
  uint32_t magic = kHeaderMagic;
  uint16_t version = kVersion;
  uint16_t type = 0;
};
struct AttachPacket {
  Header header;
  uint64_t session = 0;
  uint8_t secret[kSessionSecretBytes] = {};
};
struct AttachedPacket {
  Header header;
  int32_t code = 0;
};
struct LentPacket {
  Header header;
  uint64_t lease = 0;
  uint64_t slab = 0;
  uint64_t bytes = 0;
};
static_assert(sizeof(Header) == 8 && sizeof(AttachPacket) == 32 && sizeof(AttachedPacket) == 12 &&
              sizeof(LentPacket) == 32);

template <typename Packet>
std::string BytesOf(Packet packet, Type type) {
  packet.header.type = static_cast<uint16_t>(type);
  return std::string(reinterpret_cast<const char*>(&packet), sizeof(packet));
}

// The type of a packet of this protocol and version.
StatusOr<Type> TypeOf(absl::string_view bytes) {
  Header header;
  if (bytes.size() < sizeof(header)) {
    return absl::InvalidArgumentError(
        absl::StrCat("fd channel: ", bytes.size(), " bytes, a header has ", sizeof(header)));
  }
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.magic != kHeaderMagic) {
    return absl::InvalidArgumentError("fd channel: the magic is not this protocol's");
  }
  if (header.version != kVersion) {
    return absl::UnimplementedError(
        absl::StrCat("fd channel: version ", header.version, "; this build knows ", kVersion));
  }
  return static_cast<Type>(header.type);
}

// `bytes` as a packet of a type that has been checked.
template <typename Packet>
StatusOr<Packet> PacketOf(absl::string_view bytes) {
  Packet packet;
  if (bytes.size() != sizeof(packet)) {
    return absl::InvalidArgumentError(absl::StrCat("fd channel: a message of ", bytes.size(),
                                                   " bytes, this type has ", sizeof(packet)));
  }
  std::memcpy(&packet, bytes.data(), sizeof(packet));
  return packet;
}

Status UnexpectedType(Type type, absl::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat(
      "fd channel: a message of type ", static_cast<uint16_t>(type), ", expected was ", expected));
}

}  // namespace

StatusOr<std::string> Encode(const FdAttach& attach) {
  AttachPacket packet;
  if (attach.secret.size() != sizeof(packet.secret)) {
    return absl::InvalidArgumentError(absl::StrCat("fd channel: a secret of ", attach.secret.size(),
                                                   " bytes, it has ", sizeof(packet.secret)));
  }
  packet.session = attach.session;
  std::memcpy(packet.secret, attach.secret.data(), sizeof(packet.secret));
  return BytesOf(packet, Type::kAttach);
}

std::string Encode(const FdAttached& attached) {
  AttachedPacket packet;
  packet.code = static_cast<int32_t>(attached.code);
  return BytesOf(packet, Type::kAttached);
}

std::string Encode(const FdLent& lent) {
  LentPacket packet;
  packet.lease = lent.lease;
  packet.slab = lent.slab;
  packet.bytes = lent.bytes;
  return BytesOf(packet, lent.what == FdLent::What::kFile ? Type::kFile : Type::kSlab);
}

StatusOr<FdAttach> DecodeFdAttach(absl::string_view bytes) {
  CAIRN_ASSIGN_OR_RETURN(const Type type, TypeOf(bytes));
  if (type != Type::kAttach) return UnexpectedType(type, "attach");
  CAIRN_ASSIGN_OR_RETURN(const AttachPacket packet, PacketOf<AttachPacket>(bytes));
  FdAttach attach;
  attach.session = packet.session;
  attach.secret.assign(reinterpret_cast<const char*>(packet.secret), sizeof(packet.secret));
  return attach;
}

StatusOr<FdAttached> DecodeFdAttached(absl::string_view bytes) {
  CAIRN_ASSIGN_OR_RETURN(const Type type, TypeOf(bytes));
  if (type != Type::kAttached) return UnexpectedType(type, "attached");
  CAIRN_ASSIGN_OR_RETURN(const AttachedPacket packet, PacketOf<AttachedPacket>(bytes));
  return FdAttached{static_cast<absl::StatusCode>(packet.code)};
}

StatusOr<FdLent> DecodeFdLent(absl::string_view bytes) {
  CAIRN_ASSIGN_OR_RETURN(const Type type, TypeOf(bytes));
  if (type != Type::kSlab && type != Type::kFile) return UnexpectedType(type, "slab or file");
  CAIRN_ASSIGN_OR_RETURN(const LentPacket packet, PacketOf<LentPacket>(bytes));
  FdLent lent;
  lent.what = type == Type::kFile ? FdLent::What::kFile : FdLent::What::kSlab;
  lent.lease = packet.lease;
  lent.slab = packet.slab;
  lent.bytes = packet.bytes;
  return lent;
}

std::optional<ProgressPage> ReadProgressPage(const char* page) {
  // Each word is read once: it may change between two looks.
  const auto* words = reinterpret_cast<const uint64_t*>(page);
  const auto word = [&](size_t i) { return __atomic_load_n(words + i, __ATOMIC_RELAXED); };
  ProgressPage progress;
  progress.magic = word(0);
  progress.step = word(1);
  progress.bytes_total = word(2);
  progress.bytes_done = word(3);
  if (progress.magic != kProgressMagic || progress.bytes_total == 0) return std::nullopt;
  return progress;
}

}  // namespace cairn
