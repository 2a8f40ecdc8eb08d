/* Between host.c, which gives a context what the CPU needs, and executor.c, which runs it. */
#ifndef BURNISH_HOST_H
#define BURNISH_HOST_H

#include "api.h"
#include "context.h"

int32_t burnish_cpu_start(burnish_context *context, const burnish_options *options, burnish_error *error);
void burnish_cpu_stop(burnish_context *context);

/* Fills `buffers` from the bindings, giving own memory where nothing is bound. */
int32_t burnish_cpu_resolve(burnish_context *context);

#endif
