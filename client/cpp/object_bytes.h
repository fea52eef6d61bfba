// The bytes of an object that is to be written, for who asks for some of them: its layout's runs, with the literals of
// archives made from the records' checksums.
#pragma once

#include <cstdint>
#include <vector>

#include "client/cpp/device_reader.h"
#include "client/cpp/object_layout.h"
#include "common/status.h"

namespace cairn::client {

class ObjectBytes {
 public:
  // Reads archives' records once, for their CRC-32s. `layout`, and what it names, outlive it.
  static StatusOr<ObjectBytes> Make(const ObjectLayout* layout);

  uint64_t length() const { return layout_->length(); }
  // [offset, offset + length), which are within the object. FAILED_PRECONDITION: a file has become shorter. One thread
  // at a time.
  Status Read(uint64_t offset, uint64_t length, char* into) const;
  // All of it, one block after the other: the CRC32C of each. FAILED_PRECONDITION also: what lies in memory has changed
  // since Make, so its zip records would not have the checksums that stand in the archive.
  StatusOr<std::vector<uint32_t>> BlockCrcs() const;

 private:
  // As Read; `zip_crcs`, if not null, goes on over what is read of each record from memory.
  Status ReadAndSum(uint64_t offset, uint64_t length, char* into,
                    std::vector<uint32_t>* zip_crcs) const;

  ObjectBytes(const ObjectLayout* layout, std::vector<uint32_t> crcs)
      : layout_(layout), crcs_(std::move(crcs)) {}

  const ObjectLayout* layout_;
  std::vector<uint32_t> crcs_;  // CRC-32 per record
};

// Reads [offset, offset + n) of a source's file, and adds its CRC32C.
Status ReadSourceFile(int fd, uint64_t offset, char* into, uint64_t n, uint32_t* crc);

// [skip, skip + n) of a segment that lies on a device.
DeviceReader::Piece DevicePieceOf(const Segment& segment, uint64_t skip, char* into, uint64_t n);

}  // namespace cairn::client
