// How the module calls libcairn: the GIL is released around every call, which may block until its
// deadline, and a Status that is not OK leaves as the exception cairn.errors.from_status makes of it.
#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <type_traits>
#include <utility>

#include "common/status.h"

namespace cairn::python {

namespace py = pybind11;

// Needs the GIL.
[[noreturn]] inline void Raise(const Status& status) {
  const std::string message(status.message());
  // Python strings are UTF-8; a message may quote a name that is not.
  const py::object text = py::reinterpret_steal<py::object>(PyUnicode_DecodeUTF8(
      message.data(), static_cast<Py_ssize_t>(message.size()), "backslashreplace"));
  const py::object error = py::module_::import("cairn.errors")
                               .attr("from_status")(static_cast<int>(status.code()), text);
  PyErr_SetObject(py::type::of(error).ptr(), error.ptr());
  throw py::error_already_set();
}

// Calls `work` (which returns Status or StatusOr) without the GIL, then raises or returns the
// value.
template <typename Work>
auto Call(Work&& work) {
  auto result = [&] {
    const py::gil_scoped_release released;
    return work();
  }();
  if constexpr (std::is_same_v<decltype(result), Status>) {
    if (!result.ok()) Raise(result);
  } else {
    if (!result.ok()) Raise(result.status());
    return *std::move(result);
  }
}

}  // namespace cairn::python
