// Weights as Python sees them: the tensors of a step, and streams of them into a device. The package `cairn.weights` makes
// tensors of what comes here.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "client/cpp/session.h"
#include "client/cpp/weights.h"

namespace cairn::python {

namespace py = pybind11;

// A step's weights, and the session that their leases belong to.
class PyWeights {
 public:
  PyWeights(std::shared_ptr<client::Session> session, std::unique_ptr<client::Weights> weights)
      : session_(std::move(session)), weights_(std::move(weights)) {}
  PyWeights(PyWeights&&) = default;
  PyWeights& operator=(PyWeights&&) = default;
  ~PyWeights() { Close(); }

  void Close();
  const client::Weights& get() const;

 private:
  std::shared_ptr<client::Session> session_;
  std::unique_ptr<client::Weights> weights_;
};

void DefineWeights(py::module_& module);

}  // namespace cairn::python
