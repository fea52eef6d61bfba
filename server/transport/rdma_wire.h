// The words of RdmaControl as bytes, little-endian, for the control wire: a question, and its answer.
//
//   question   0  8  magic "CAIRNRD\x01"
//              8  1  kind: 1 connect, 2 open, 3 open anew what came otherwise than it should, 4 on a rail
//    connect:  u64 replaces, u32 count, endpoints
//    open:     u64 connection, 16 bytes token, u8 anew
//    open anew: u64 connection, 16 bytes token, u64 slab, u64 offset, u64 length, u32 checksum as it came
//    on a rail: u8 rail, not 0, and a whole question of another kind
//   answer to connect: u64 connection, u32 count, endpoints
//   answer to open:    u32 count, extents (u64 slab, u64 offset, u64 length), by slab and offset;
//                      u32 count, slabs: u64 slab, u32 count, pieces (u64 offset, u64 length, u32 key)
//   endpoint   u32 queue, u32 first packet, u8 ethernet, u16 lid, 16 bytes gid, i32 mtu, i32 reads in
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/string_view.h"
#include "common/status.h"
#include "server/transport/rdma_control.h"

namespace cairn::transport {

using RdmaQuestion = std::variant<RdmaConnect, RdmaOpen>;

std::string Encode(const RdmaQuestion& question);
std::string Encode(const RdmaConnected& answer);
std::string Encode(const RdmaOpened& answer);

// INVALID_ARGUMENT, saying what is wrong.
StatusOr<RdmaQuestion> DecodeRdmaQuestion(absl::string_view bytes);
StatusOr<RdmaConnected> DecodeRdmaConnected(absl::string_view bytes);
StatusOr<RdmaOpened> DecodeRdmaOpened(absl::string_view bytes);

// The question for one of the owner's devices, by number. Those for the first are as they are.
std::string OnRail(uint8_t rail, std::string question);
// Which it is for, and the question itself.
std::pair<uint8_t, absl::string_view> RailOf(absl::string_view question);

// The reader's way to owners over any control wire.
class RdmaControlOverWire final : public RdmaControl {
 public:
  // `wire` outlives it. The address of an owner is its rank, as RdmaAddress writes it. `rail`: which of its devices.
  explicit RdmaControlOverWire(ControlWire* wire, uint8_t rail = 0) : wire_(wire), rail_(rail) {}
  StatusOr<RdmaConnected> Connect(const std::string& address, const RdmaConnect& request,
                                  MonotonicNanos deadline) override;
  StatusOr<RdmaOpened> Open(const std::string& address, const RdmaOpen& request,
                            MonotonicNanos deadline) override;

 private:
  ControlWire* const wire_;
  const uint8_t rail_;
};

std::string RdmaAddress(int32_t rank);  // "rank 3"

}  // namespace cairn::transport
