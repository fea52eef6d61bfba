// A step from one session to another: of the same process, or of a child that has its process token.
#include <thrift/protocol/TBinaryProtocol.h>
#include <thrift/transport/TBufferTransports.h>

#include <utility>

#include "client/cpp/process.h"
#include "client/cpp/step_writer.h"

namespace cairn::client {

using apache::thrift::protocol::TBinaryProtocol;
using apache::thrift::transport::TMemoryBuffer;

// What is handed over is the commit as it would be made now.
StatusOr<std::string> StepWriterImpl::HandOver() {
  std::string handed_over;
  const Status status = Contain([&]() -> Status {
    CAIRN_RETURN_IF_ERROR(Usable());
    CAIRN_RETURN_IF_ERROR(SealReserved(std::exchange(reserved_, {})));
    const wire::CommitRequest request = TakeSeals();
    const auto memory = std::make_shared<TMemoryBuffer>();
    TBinaryProtocol protocol(memory);
    request.write(&protocol);
    handed_over = memory->getBufferAsString();
    done_ = true;
    AnnounceEnd();
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return handed_over;
}

StatusOr<std::unique_ptr<StepWriter>> StepWriterImpl::TakeOver(std::shared_ptr<Link> link,
                                                               const std::string& handed_over,
                                                               absl::Duration timeout) {
  wire::CommitRequest request;
  try {
    std::string bytes = handed_over;
    TBinaryProtocol protocol(std::make_shared<TMemoryBuffer>(
        reinterpret_cast<uint8_t*>(bytes.data()), static_cast<uint32_t>(bytes.size())));
    request.read(&protocol);
  } catch (const apache::thrift::TException& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("handed_over: not what a step was handed over as: ", error.what()));
  }
  const StepIdentity identity = {request.step, request.attempt, request.revision, request.writer,
                                 request.world_size};
  CAIRN_RETURN_IF_ERROR(ValidateWorld(identity.writer, identity.world_size));
  auto writer = std::make_unique<StepWriterImpl>(std::move(link), identity, timeout);
  for (const wire::SealedObject& seal : request.seals) {
    writer->names_.insert(seal.name);
    writer->bytes_written_ += seal.length;
  }
  writer->seals_ = std::move(request.seals);
  if (!writer->seals_.empty()) CAIRN_RETURN_IF_ERROR(writer->Join());
  return writer;
}

// Sealing tells whether the objects are still there, and an empty create makes this session one of their writers: it
// may drop them, and with its end they go. The commit names the objects again, so what was dropped in between is
// missed.
Status StepWriterImpl::Join() {
  const MonotonicNanos deadline = link_->Deadline(timeout_);
  wire::SealRequest seal;
  seal.step = identity_.step;
  seal.attempt = identity_.attempt;
  seal.revision = identity_.revision;
  seal.writer = identity_.writer;
  seal.seals = seals_;
  const int64_t call = link_->NextCall();
  CAIRN_RETURN_IF_ERROR(
      link_->Call("seal", deadline, [&](wire::CairnClient& client, const auto& attachment) {
        attachment_ = attachment;
        client.seal(call, seal);
      }));
  std::vector<Place> none;
  return Create({}, {}, deadline, &none);
}

}  // namespace cairn::client
