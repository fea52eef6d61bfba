#include "server/transport/rdma_wire.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/codec.h"
#include "server/transport/grant_table.h"

namespace cairn::transport {
namespace {

constexpr absl::string_view kMagic("CAIRNRD\x01", 8);
constexpr absl::string_view kRank = "rank ";
enum class Kind : uint8_t { kConnect = 1, kOpen = 2, kOpenAnew = 3, kOnRail = 4 };
// Of a connection; an owner takes fewer (RdmaOwnerOptions).
constexpr uint32_t kMostEndpoints = 64;
// Of a slab: 64 TiB in pieces of a GiB.
constexpr uint32_t kMostPieces = 1 << 16;

Status Wrong(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("rdma: ", what));
}

template <size_t N>
void AppendBytes(std::string* out, const std::array<uint8_t, N>& bytes) {
  out->append(reinterpret_cast<const char*>(bytes.data()), N);
}

template <size_t N>
bool TakeBytes(Cursor* cursor, std::array<uint8_t, N>* bytes) {
  return std::all_of(bytes->begin(), bytes->end(),
                     [&](uint8_t& byte) { return cursor->Take(&byte); });
}

void AppendEndpoints(std::string* out, const std::vector<VerbsEndpoint>& endpoints) {
  AppendInteger(out, static_cast<uint32_t>(endpoints.size()));
  for (const VerbsEndpoint& endpoint : endpoints) {
    AppendInteger(out, endpoint.queue);
    AppendInteger(out, endpoint.first_packet);
    AppendInteger<uint8_t>(out, endpoint.ethernet ? 1 : 0);
    AppendInteger(out, endpoint.lid);
    AppendBytes(out, endpoint.gid);
    AppendInteger<int32_t>(out, endpoint.mtu_bytes);
    AppendInteger<int32_t>(out, endpoint.reads_in);
  }
}

bool TakeEndpoints(Cursor* cursor, std::vector<VerbsEndpoint>* endpoints) {
  uint32_t count = 0;
  if (!cursor->Take(&count) || count > kMostEndpoints) return false;
  for (uint32_t i = 0; i < count; ++i) {
    VerbsEndpoint endpoint;
    uint8_t ethernet = 0;
    int32_t mtu = 0, reads_in = 0;
    if (!cursor->Take(&endpoint.queue) || !cursor->Take(&endpoint.first_packet) ||
        !cursor->Take(&ethernet) || ethernet > 1 || !cursor->Take(&endpoint.lid) ||
        !TakeBytes(cursor, &endpoint.gid) || !cursor->Take(&mtu) || !cursor->Take(&reads_in)) {
      return false;
    }
    endpoint.ethernet = ethernet == 1;
    endpoint.mtu_bytes = mtu;
    endpoint.reads_in = reads_in;
    endpoints->push_back(endpoint);
  }
  return true;
}

struct AppendQuestion {
  std::string* out;
  void operator()(const RdmaConnect& connect) const {
    AppendInteger(out, static_cast<uint8_t>(Kind::kConnect));
    AppendInteger(out, connect.replaces);
    AppendEndpoints(out, connect.endpoints);
  }
  void operator()(const RdmaOpen& open) const {
    const bool came = open.anew && open.came.has_value();
    AppendInteger(out, static_cast<uint8_t>(came ? Kind::kOpenAnew : Kind::kOpen));
    AppendInteger(out, open.connection);
    AppendBytes(out, open.token);
    if (!came) return AppendInteger<uint8_t>(out, open.anew ? 1 : 0);
    AppendInteger(out, open.came->bytes.slab);
    AppendInteger(out, open.came->bytes.offset);
    AppendInteger(out, open.came->bytes.length);
    AppendInteger(out, open.came->crc);
  }
};

}  // namespace

std::string Encode(const RdmaQuestion& question) {
  std::string out(kMagic);
  std::visit(AppendQuestion{&out}, question);
  return out;
}

StatusOr<RdmaQuestion> DecodeRdmaQuestion(absl::string_view bytes) {
  if (!absl::ConsumePrefix(&bytes, kMagic)) return Wrong("not a question of version 1");
  Cursor cursor(bytes);
  uint8_t kind = 0;
  RdmaConnect connect;
  RdmaOpen open;
  uint8_t anew = 0;
  if (!cursor.Take(&kind)) return Wrong("a question of no kind");
  if (kind == static_cast<uint8_t>(Kind::kConnect) && cursor.Take(&connect.replaces) &&
      TakeEndpoints(&cursor, &connect.endpoints) && cursor.left() == 0) {
    return RdmaQuestion(std::move(connect));
  }
  if (kind == static_cast<uint8_t>(Kind::kOpen) && cursor.Take(&open.connection) &&
      TakeBytes(&cursor, &open.token) && cursor.Take(&anew) && anew <= 1 && cursor.left() == 0) {
    open.anew = anew == 1;
    return RdmaQuestion(open);
  }
  RdmaOpen::Came came;
  if (kind == static_cast<uint8_t>(Kind::kOpenAnew) && cursor.Take(&open.connection) &&
      TakeBytes(&cursor, &open.token) && cursor.Take(&came.bytes.slab) &&
      cursor.Take(&came.bytes.offset) && cursor.Take(&came.bytes.length) &&
      cursor.Take(&came.crc) && cursor.left() == 0 && came.bytes.length >= 1 &&
      came.bytes.length <= kMaxReadBytes) {
    open.anew = true;
    open.came = came;
    return RdmaQuestion(open);
  }
  return Wrong(absl::StrCat("a question of kind ", kind, " that is not one"));
}

std::string Encode(const RdmaConnected& answer) {
  std::string out;
  AppendInteger(&out, answer.connection);
  AppendEndpoints(&out, answer.endpoints);
  return out;
}

StatusOr<RdmaConnected> DecodeRdmaConnected(absl::string_view bytes) {
  Cursor cursor(bytes);
  RdmaConnected answer;
  if (cursor.Take(&answer.connection) && TakeEndpoints(&cursor, &answer.endpoints) &&
      cursor.left() == 0) {
    return answer;
  }
  return Wrong("an answer to connect that is not one");
}

std::string Encode(const RdmaOpened& answer) {
  std::string out;
  AppendInteger(&out, static_cast<uint32_t>(answer.extents.size()));
  for (const ExtentRef& extent : answer.extents) {
    AppendInteger(&out, extent.slab);
    AppendInteger(&out, extent.offset);
    AppendInteger(&out, extent.length);
  }
  AppendInteger(&out, static_cast<uint32_t>(answer.slabs.size()));
  for (const RdmaOpened::Slab& slab : answer.slabs) {
    AppendInteger(&out, slab.slab);
    AppendInteger(&out, static_cast<uint32_t>(slab.pieces.size()));
    for (const RdmaPiece& piece : slab.pieces) {
      AppendInteger(&out, piece.offset);
      AppendInteger(&out, piece.length);
      AppendInteger(&out, piece.key);
    }
  }
  return out;
}

StatusOr<RdmaOpened> DecodeRdmaOpened(absl::string_view bytes) {
  constexpr size_t kExtentBytes = 24, kSlabBytes = 12, kPieceBytes = 20;
  const Status wrong = Wrong("an answer to open that is not one");
  Cursor cursor(bytes);
  RdmaOpened answer;
  uint32_t extents = 0, slabs = 0;
  // What is announced is there, so nothing is allocated for what is not.
  if (!cursor.Take(&extents) || extents > cursor.left() / kExtentBytes) return wrong;
  answer.extents.resize(extents);
  for (ExtentRef& extent : answer.extents) {
    if (!cursor.Take(&extent.slab) || !cursor.Take(&extent.offset) ||
        !cursor.Take(&extent.length)) {
      return wrong;
    }
  }
  if (!cursor.Take(&slabs) || slabs > cursor.left() / kSlabBytes) return wrong;
  answer.slabs.resize(slabs);
  for (RdmaOpened::Slab& slab : answer.slabs) {
    uint32_t pieces = 0;
    if (!cursor.Take(&slab.slab) || !cursor.Take(&pieces) || pieces > kMostPieces ||
        pieces > cursor.left() / kPieceBytes) {
      return wrong;
    }
    slab.pieces.resize(pieces);
    for (RdmaPiece& piece : slab.pieces) {
      if (!cursor.Take(&piece.offset) || !cursor.Take(&piece.length) || !cursor.Take(&piece.key)) {
        return wrong;
      }
    }
  }
  if (cursor.left() != 0 || !InOrder(answer.extents)) return wrong;
  return answer;
}

std::string OnRail(uint8_t rail, std::string question) {
  if (rail == 0) return question;
  std::string out(kMagic);
  AppendInteger(&out, static_cast<uint8_t>(Kind::kOnRail));
  AppendInteger(&out, rail);
  return out + question;
}

std::pair<uint8_t, absl::string_view> RailOf(absl::string_view question) {
  absl::string_view words = question;
  if (!absl::ConsumePrefix(&words, kMagic) || words.size() < 2 ||
      static_cast<uint8_t>(words[0]) != static_cast<uint8_t>(Kind::kOnRail)) {
    return {0, question};
  }
  return {static_cast<uint8_t>(words[1]), words.substr(2)};
}

std::string RdmaAddress(int32_t rank) { return absl::StrCat(kRank, rank); }

namespace {

StatusOr<int32_t> RankOf(absl::string_view address) {
  int32_t rank = 0;
  if (absl::ConsumePrefix(&address, kRank) && absl::SimpleAtoi(address, &rank)) return rank;
  return absl::UnavailableError(absl::StrCat("\"", address, "\" is no member's address for RDMA"));
}

}  // namespace

StatusOr<RdmaConnected> RdmaControlOverWire::Connect(const std::string& address,
                                                     const RdmaConnect& request,
                                                     MonotonicNanos deadline) {
  CAIRN_ASSIGN_OR_RETURN(const int32_t rank, RankOf(address));
  CAIRN_ASSIGN_OR_RETURN(const std::string answer,
                         wire_->Ask(rank, OnRail(rail_, Encode(request)), deadline));
  return DecodeRdmaConnected(answer);
}

StatusOr<RdmaOpened> RdmaControlOverWire::Open(const std::string& address, const RdmaOpen& request,
                                               MonotonicNanos deadline) {
  CAIRN_ASSIGN_OR_RETURN(const int32_t rank, RankOf(address));
  CAIRN_ASSIGN_OR_RETURN(const std::string answer,
                         wire_->Ask(rank, OnRail(rail_, Encode(request)), deadline));
  return DecodeRdmaOpened(answer);
}

}  // namespace cairn::transport
