// cairn._native.Step: one writer's part of one step, and what of it is written in the background.
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/cpp/background.h"
#include "client/cpp/session.h"
#include "client/python/src/memory.h"
#include "common/keys.h"
#include "common/zip.h"

namespace cairn::python {

namespace py = pybind11;

// Objects of one call, and the memory and the plans that they are written from. Made and destroyed with the GIL.
class Objects {
 public:
  // (name, kind, archive or None, its records' or its own (where, length)) each.
  explicit Objects(const py::sequence& objects);
  const std::vector<client::StepWriter::Item>& items() const { return items_; }

 private:
  Sources held_;
  std::vector<py::object> archives_;
  std::vector<client::StepWriter::Item> items_;
};

// A write that goes on while Python does something else. Shared by its step and by who waits for it.
class PyWriting {
 public:
  PyWriting(std::shared_ptr<client::StepWriter> writer, std::unique_ptr<Objects> objects);
  ~PyWriting();

  // Whether it has ended. Raises what it failed with.
  bool Wait(double timeout_s);
  bool ended() const { return work_->Wait(absl::ZeroDuration()); }
  void Hurry() { work_->Hurry(); }

 private:
  std::shared_ptr<client::StepWriter> writer_;
  const std::unique_ptr<Objects> objects_;
  std::unique_ptr<client::Background> work_;
};

// Destroying it uncommitted aborts it, in libcairn.
class PyStep {
 public:
  explicit PyStep(std::unique_ptr<client::StepWriter> writer) : writer_(std::move(writer)) {}
  PyStep(PyStep&&) = default;
  PyStep& operator=(PyStep&&) = default;
  ~PyStep() { Drop(); }

  // Ends it without a word about how: a daemon that does not answer is not waited for twice.
  void Drop();
  void Write(const std::string& name, const std::string& kind, const py::sequence& sources);
  // records: (path in the archive, where, length) each.
  void WriteZip(const std::string& name, const std::string& kind, const py::sequence& records);
  // Of each piece its form, an archive, a frame or None, and where its bytes are: (where, length) of each of the archive's
  // records, `where` alone of the frame's open record, (where, length) of all there is. Returns the pieces' offsets and
  // lengths in turn, as little-endian integers of 64 bits.
  py::bytes WritePieces(const std::string& name, const std::string& kind, const py::list& forms,
                        const py::list& wheres);
  // Of objects that are written next. Raises RESOURCE_EXHAUSTED when there is no room within so many seconds.
  void SetAside(const std::map<std::string, uint64_t>& lengths, double patience_s);
  // Memory of an object that the caller fills until it is sealed, or this ends.
  Region Reserve(const std::string& name, const std::string& kind, uint64_t length);
  void Seal(const std::string& name);
  // Whether writes leave the machine's other cores to the process; also while one goes on in another thread.
  void CopyBeside(bool beside);
  // Returns at once. Until it has ended the step is written to and ended by nobody else.
  std::shared_ptr<PyWriting> WriteLater(const py::sequence& objects);
  py::tuple Commit(const std::map<std::string, std::string>& notes);
  void Abort();
  py::bytes HandOver();
  Revision revision() const;
  uint64_t bytes_written() const { return writer_ == nullptr ? 0 : writer_->bytes_written(); }

 private:
  // For a call that changes it.
  client::StepWriter* Get() const;

  std::shared_ptr<client::StepWriter> writer_;
  std::shared_ptr<PyWriting> writing_;
  std::shared_ptr<std::atomic<bool>> beside_;  // what the writer looks at
};

void DefineStep(py::module_& module);

}  // namespace cairn::python
