// Planning over Python's dictionaries, fast enough for every step of a large job.
#pragma once

#include <pybind11/pybind11.h>

namespace cairn::python {

void DefinePlanning(pybind11::module_& module);

}  // namespace cairn::python
