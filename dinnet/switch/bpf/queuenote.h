/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/* The pipeline's part of reports about packets in a queue.
 *
 * A packet that is sent as a clone enters its queue before the call returns, on the same CPU: whoever watches the
 * queue takes the note in that time, and with it the duty to report. If nobody does (no queue, no telemetry there, no
 * room), the pipeline reports as ever. So a packet gives one report, whoever dies when.
 */
#ifndef DINNET_QUEUENOTE_H
#define DINNET_QUEUENOTE_H

#include "parse.h"
#include "shared.h"

static __always_inline void leave_note(struct __sk_buff *skb, struct packet *p, __u32 node_id, __u16 port, __u32 device)
{
	__u32 zero = 0, head = p->l4 - p->l3, transport, available;
	struct queue_note *note = bpf_map_lookup_elem(&queue_note, &zero);

	if (!note)
		return;
	note->ifindex = 0;
	transport = p->later_fragment ? 0 : p->proto == 6 ? 20 : p->proto == 17 ? 8 : 0;
	available = skb->len > p->l4 ? skb->len - p->l4 : 0;
	head += transport < available ? transport : available & ~3;
	if (head > INT_REPORT_BYTES)
		head = INT_REPORT_BYTES;
	/* From 1 to INT_REPORT_BYTES in a way that the verifier of Linux 6.1 sees, too; a header is never empty. */
	head = ((head - 1) & (INT_REPORT_BYTES - 1)) + 1;
	if (bpf_skb_load_bytes(skb, p->l3, note->head, head))
		return;
	note->head_bytes = head;
	note->ingress_ns = p->now_ns;
	note->node_id = node_id;
	note->frame_bytes = p->frame_bytes;
	note->bits = p->watch_instructions;
	note->ingress_port = p->ingress_port;
	note->egress_port = port;
	note->version = p->version;
	note->slice = p->slice;
	note->tc = p->tc;
	note->tos = p->tos;
	note->ttl = p->ttl;
	note->length = skb->len;
	note->taken = 0;
	note->ifindex = device;
}

/* Whether somebody else reports. */
static __always_inline int is_note_taken(void)
{
	__u32 zero = 0;
	struct queue_note *note = bpf_map_lookup_elem(&queue_note, &zero);
	int taken = note && note->ifindex && note->taken;

	if (note)
		note->ifindex = 0;
	return taken;
}

#endif
